"""A task, an algorithm and teammates for naht."""
