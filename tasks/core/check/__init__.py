"""Checking what is published, and telling what it is: `verify` and `inspect`."""
