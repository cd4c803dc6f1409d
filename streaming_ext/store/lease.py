"""Holding a dataset in an object store for one run, with nothing but conditional creation.

Generations: whoever creates `runs/.lock-N` where there was none (`If-None-Match: *`), N being one
more than any there is, holds the dataset; the server lets only one do so. The holder rewrites its
own lock every few seconds and looks for a higher one. Where one is gone, or was killed, its lock
stands still: another run *watches* it for `LEASE_SECONDS` on its own monotonic clock, so that no
clock of anyone needs to be right, and then creates the next generation. The old holder, should it
wake up, sees that and stops: generations only grow, so there is no moment at which both believe
for longer than one heartbeat. And since bytes are a function of sources and configuration, what
the two put in between is the same, or is refused when publishing.

A lock of a dead process of this very machine is taken over at once.
"""

import json
import os
import platform
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from streaming_ext.base.errors import StorageError, TransientStorageError, UsageError
from streaming_ext.store.holding import LOCK_FOLDER, started, this_machine

LEASE_SECONDS = 30.0
BEAT_SECONDS = 5.0
_WATCH_SECONDS = 1.0
_SETTLE_SECONDS = 0.5
_LOCK = re.compile(rf"{LOCK_FOLDER}/\.lock-(\d{{1,12}})")
RELEASED = b'{"released": true}\n'


class LockObjects(Protocol):
    """The few requests that a lease is made of."""

    def list(self, folder: str = "") -> dict[str, int]: ...
    def read(self, path: str) -> bytes: ...
    def put(self, path: str, data: bytes) -> None: ...
    def put_new(self, path: str, data: bytes) -> bool: ...
    def remove(self, path: str) -> None: ...


class Lease:
    """One run's hold on a dataset."""

    def __init__(self, objects: LockObjects) -> None:
        self._objects = objects
        self._token = uuid.uuid4().hex
        self._generation = 0
        self._beats = 0
        self._renewed = 0.0
        self._lost: str | None = None
        self._ended = threading.Event()

    def require(self) -> None:
        """Make sure that the dataset is still ours.

        Raises:
            StorageError: another run took it over, or for long nothing could be told of this one.
        """
        if self._lost is None and time.monotonic() - self._renewed > LEASE_SECONDS:
            self._lost = f"its lock could not be renewed for {LEASE_SECONDS:.0f} s"
        if self._lost is not None:
            raise StorageError(
                f"{self._objects}: this run lost its hold on the output ({self._lost}) and stops, "
                "so that no two runs write there. Run the same command again to go on."
            )

    @contextmanager
    def held(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Take the dataset, keep it for the block, and let it go.

        Args:
            tell: called with what it waits for.

        Raises:
            UsageError: another run is at work.
        """
        self._take(tell)
        beat = threading.Thread(target=self._keep, name="shardmill-lease", daemon=True)
        beat.start()
        try:
            yield
        finally:
            self._ended.set()
            beat.join(BEAT_SECONDS)
            if self._lost is None:
                # Where the store does not answer, the next run finds us gone all the same.
                with suppress(TransientStorageError):
                    self._objects.put(self._path(self._generation), RELEASED)

    def _path(self, generation: int) -> str:
        return f"{LOCK_FOLDER}/.lock-{generation:08}"

    def _content(self) -> bytes:
        self._beats += 1
        value = {
            "token": self._token,
            "beat": self._beats,
            "host": platform.node(),
            "machine": this_machine(),
            "pid": os.getpid(),
            "started": started(os.getpid()),
        }
        return (json.dumps(value, sort_keys=True) + "\n").encode()

    def _generations(self) -> list[int]:
        found = (_LOCK.fullmatch(path) for path in self._objects.list(LOCK_FOLDER))
        return sorted(int(match[1]) for match in found if match)

    def _take(self, tell: Callable[[str], None]) -> None:
        """Create the next generation.

        Raises:
            UsageError: another run is at work.
            StorageError: for `LEASE_SECONDS` the store did not do what it answered.
        """
        tried_since: float | None = None
        while True:
            generations = self._generations()
            latest = generations[-1] if generations else 0
            if latest and not self._wait_until_free(latest, tell):
                continue  # it is being taken down; the next listing shows what is there
            tried_since = tried_since or time.monotonic()
            problem = self._create(latest + 1)
            if problem is None:
                for old in generations:
                    self._objects.remove(self._path(old))
                return
            if time.monotonic() - tried_since > LEASE_SECONDS:
                raise StorageError(
                    f"{self._objects}: its lock cannot be taken: {problem}, for "
                    f"{LEASE_SECONDS:.0f} s. A dataset needs a store that lists and reads what was "
                    "put, and that refuses a conditional PUT (If-None-Match: *) only where there "
                    f"is an object. If no other run is at work, remove {self._path(latest + 1)}."
                )
            tell(f"trying again to take {self._objects}: {problem}")
            time.sleep(_SETTLE_SECONDS)

    def _create(self, generation: int) -> str | None:
        """Create a lock; why it is not ours, or None where it is."""
        path = self._path(generation)
        began = time.monotonic()
        if not self._objects.put_new(path, self._content()):
            return f"{path} is answered to be there already, and no listing shows it"
        # Some servers look first and write then, so that several may believe to be first:
        # a moment later only one lock stands.
        time.sleep(_SETTLE_SECONDS)
        if not self._is_ours(generation):
            return f"{path} was put, and it is not there or another's"
        shown = max(self._generations(), default=0)
        if shown > generation:  # we came by where another had been and gone
            self._objects.remove(path)
            return f"{self._path(shown)} appeared meanwhile"
        if shown < generation:
            self._objects.remove(path)
            return f"{path} was put, and no listing shows it"
        self._generation, self._renewed = generation, began
        return None

    def _is_ours(self, generation: int) -> bool:
        try:
            content = self._objects.read(self._path(generation))
        except FileNotFoundError:
            return False
        return _fields(content).get("token") == self._token

    def _wait_until_free(self, generation: int, tell: Callable[[str], None]) -> bool:
        """Watch a lock; False where it went away meanwhile.

        Raises:
            UsageError: its holder is alive.
        """
        path = self._path(generation)
        first: bytes | None = None
        deadline = time.monotonic() + LEASE_SECONDS
        while True:
            try:
                content = self._objects.read(path)
            except FileNotFoundError:
                return False
            if content == RELEASED or _is_dead(content):
                return True
            if first is None:
                first = content
            if content != first or _is_alive_here(content):
                raise UsageError(
                    f"Another run is writing to {self._objects}: {_who(content)}. Wait for it, "
                    "stop it, or use another --output."
                )
            if time.monotonic() > deadline:
                return True
            tell(
                f"waiting for another run ({_who(content)}) to let go of {self._objects}, or to "
                f"show no sign of life for {LEASE_SECONDS:.0f} s"
            )
            time.sleep(_WATCH_SECONDS)

    def _keep(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            began = time.monotonic()
            try:
                latest = max(self._generations(), default=0)
                if latest > self._generation:
                    self._lost = f"another run took it over, generation {latest}"
                    return
                # What a listing leaves out is nevertheless ours as long as it reads so.
                if not self._is_ours(self._generation):
                    self._lost = "its lock is gone or another's"
                    return
                self._objects.put(self._path(self._generation), self._content())
                self._renewed = began
            except TransientStorageError:
                continue  # `require` knows how long that may go on
            except StorageError as error:
                self._lost = str(error)
                return


def _fields(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _lives(fields: dict[str, Any]) -> bool | None:
    """Whether a holder on this machine lives; None where only its own machine knows."""
    if fields.get("machine") != this_machine() or not isinstance(fields.get("pid"), int):
        return None
    return started(fields["pid"]) == fields.get("started")


def _is_dead(content: bytes) -> bool:
    return _lives(_fields(content)) is False


def _is_alive_here(content: bytes) -> bool:
    return _lives(_fields(content)) is True


def _who(content: bytes) -> str:
    fields = _fields(content)
    host = "".join(c for c in str(fields.get("host", "?"))[:80] if c.isprintable())
    return f"process {str(fields.get('pid', '?'))[:12]} on {host}"
