"""Clients that hold connections and locks: made once per process, never used after a fork.

Two processes that read from one connection get each other's bytes, and a lock that another thread
holds during a fork is never released in the child. So code that needs a client calls
`client_of_process` each time, and does not store the client.
"""

import os
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

Client = TypeVar("Client")

# Environment variables that clients read when they are made; a change makes a new client.
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


# Clients by their settings, with a lock. The last entry belongs to this process, the others to the
# processes from which it was forked. They are kept, because a worker that drops its copy of a
# client closes connections, and may remove them from a poll set that both processes use.
_clients: list[tuple[threading.Lock, dict[str, Any]]] = [(threading.Lock(), {})]
os.register_at_fork(after_in_child=lambda: _clients.append((threading.Lock(), {})))


def client_of_process(
    server: tuple[object, ...],
    make: Callable[[], Client],
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Client:
    """Return this process's client of a server, made on first use.

    Args:
        server: the values on which the client depends, such as scheme and bucket.
        make: a function that makes the client.
        options: the options of the user, on which the client also depends.
    """
    settings = sorted(pair for pair in os.environ.items() if pair[0].upper().startswith(_SETTINGS))
    key = repr((server, sorted(options.items()), settings))
    guard, made = _clients[-1]
    with guard:
        if key not in made:
            made[key] = make()
        client: Client = made[key]
    return client
