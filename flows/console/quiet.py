"""Prefect's own log: to its dashboard, and in the terminal where it is asked for."""

import os


def quiet_prefect() -> None:
    """Leave the terminal to the progress bar; Prefect's own log still goes to its dashboard."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # A server that is gone for good holds a run up for 14 s a question, not for a minute.
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "3")
