"""Checking a dataset against what it says of itself, and against its sources."""
