"""Prefect's API: the configured server or the command's own, and cancellation."""
