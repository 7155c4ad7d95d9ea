"""Doors to other libraries: each file needs the library it is named after, and is imported when used."""
