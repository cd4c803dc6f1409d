"""One client for each place a process, whatever thread asks: to make one takes long."""

import os
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from streaming_ext.storage.client import ObjectClient
from streaming_ext.storage.patience import Retry, timeout_seconds

Client = TypeVar("Client")

# What the clients look at when they are made: after a change they must be made anew.
_SETTINGS = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_HOST", "FSSPEC_")


class _Clients:
    """Clients by what they were made from."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._made: dict[str, Any] = {}

    def of(self, key: str, make: Callable[[], Any]) -> Any:
        with self._guard:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]


# Those of this process are the last ones. Those of its parents are kept: a forked worker that lets
# go of its copy of a client closes connections, and with them takes those of the parent out of the
# poll set that both share: the parent's next read would wait for its time-out.
_clients = [_Clients()]
os.register_at_fork(after_in_child=lambda: _clients.append(_Clients()))


def client_of_process(
    place: tuple[object, ...], options: Mapping[str, Any], make: Callable[[], Client]
) -> Client:
    """This process's client for a place, made by whoever asks first.

    Args:
        place: what else it depends on, such as scheme and bucket.
        options: of the user.
        make: makes it.
    """
    settings = sorted(pair for pair in os.environ.items() if pair[0].startswith(_SETTINGS))
    client: Client = _clients[-1].of(repr((place, sorted(options.items()), settings)), make)
    return client


def object_client(
    scheme: str,
    bucket: str,
    *,
    retry: Retry | None = None,
    timeout: float | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> ObjectClient:
    """This process's client for a bucket; see `ObjectClient`, also for what is not given."""
    retry = retry or Retry.usual()
    timeout = timeout_seconds() if timeout is None else timeout

    def make() -> ObjectClient:
        return ObjectClient(
            scheme=scheme, bucket=bucket, retry=retry, timeout=timeout, options=options
        )

    return client_of_process((scheme, bucket, retry, timeout), options, make)
