"""The Stoker engine: runs Mixture-of-Experts models whose experts live in VRAM, RAM and on disk. No Qt in here."""

__version__ = "0.1.0"
