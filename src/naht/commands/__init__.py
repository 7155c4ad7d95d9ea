"""What each `naht` command does: a dataclass of flags, and a function that calls the Python API."""
