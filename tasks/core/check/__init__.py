"""Checks and describes what is published: `verify` and `inspect`."""
