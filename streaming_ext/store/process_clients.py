"""What holds a connection, a lock or a thread: made once a process, and never used after a fork.

Two processes that read from one connection get each other's bytes, and a lock that another thread
held while its process forked is never released in the child. So whatever keeps a client asks for it
here each time, and nothing of the house stores one.
"""

import os
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

Client = TypeVar("Client")

# What the clients look at when they are made: after a change they must be made anew.
_SETTINGS = (
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "STORAGE_EMULATOR_HOST",
    "FSSPEC_",
    "SSL_CERT_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SHARDMILL_STORAGE_TIMEOUT",
)


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
    place: tuple[object, ...],
    make: Callable[[], Client],
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Client:
    """This process's client for a place, made by whoever asks first.

    Args:
        place: what else it depends on, such as scheme and bucket.
        make: makes it.
        options: of the user.
    """
    settings = sorted(pair for pair in os.environ.items() if pair[0].upper().startswith(_SETTINGS))
    client: Client = _clients[-1].of(repr((place, sorted(options.items()), settings)), make)
    return client
