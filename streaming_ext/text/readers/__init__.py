"""Readers of source files: one module per file format."""
