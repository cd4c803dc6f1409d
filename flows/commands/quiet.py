"""Prefect without its own lines in the terminal."""

import os


def quiet_prefect() -> None:
    """Leave the terminal to the progress bar; Prefect's own log still goes to its dashboard."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
