"""Files that the window shows: line icons. Found with `importlib.resources.files("resources")`."""
