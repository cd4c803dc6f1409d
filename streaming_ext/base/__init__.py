"""Errors, types and checks that every other folder may use. It imports nothing of this project."""
