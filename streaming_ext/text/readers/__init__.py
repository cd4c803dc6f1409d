"""Readers of source files: a file format a file."""
