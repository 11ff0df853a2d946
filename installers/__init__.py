"""Sets up and starts Stoker from a clone with nothing but the standard library. Knows nothing of the engine or the window."""
