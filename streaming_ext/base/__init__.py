"""Errors, types and checks for every other folder; this one imports no other of the project."""
