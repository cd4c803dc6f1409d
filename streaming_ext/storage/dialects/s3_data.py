"""What botocore knows of services: more than a megabyte of JSON, read once a process.

Each of its sessions would read it anew, and s3fs makes a session for each client: nine tenths of
what a further client costs.
"""

import functools
from typing import Any


def with_shared_data(session: Any) -> Any:
    """The same session of botocore or aiobotocore, which reads what no other one has read."""
    path = session.get_config_variable("data_path")
    session.register_component("data_loader", _loader(path))
    return session


@functools.cache
def _loader(path: str | None) -> Any:
    from botocore.loaders import create_loader  # type: ignore[import-untyped]

    return create_loader(path)
