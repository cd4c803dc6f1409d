"""Readers of source files: a file format a file, and the table that chooses one by a name."""
