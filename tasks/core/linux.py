"""The check that this system is Linux, the only one on which datasets are made."""

import sys

from streaming_ext.base.errors import UsageError

SYSTEM = sys.platform


def require_linux() -> None:
    """Refuse to make a dataset on another system, before any work.

    Workers limit their memory, pass on open files and watch each other with features that only
    Linux has. Elsewhere they would be slow, use unlimited memory, and fail half-way.

    Raises:
        UsageError: this is not Linux.
    """
    if not SYSTEM.startswith("linux"):
        raise UsageError(
            f"Datasets are made on Linux only, and this is {SYSTEM}. (1) Run the image of "
            "deployments/Dockerfile; (2) `shardmill submit` a deployment to hosts that run Linux. "
            "Commands that read a dataset (verify, inspect, trace) and training run here too."
        )
