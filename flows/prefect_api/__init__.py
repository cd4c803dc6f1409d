"""Prefect's API as this project uses it: embedded in the command, and for cancelling."""
