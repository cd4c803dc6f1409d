"""The lock of a dataset in an object store, which needs only conditional creation.

The process that creates `runs/.lock-N` (`If-None-Match: *`) holds the dataset, where N is one more
than the highest existing number. The server lets only one process create it. The holder rewrites
its lock every few seconds and looks for a higher one. The lock of a holder that was killed does not
change any more. Another run watches the lock for `LEASE_SECONDS` on its own monotonic clock, so no
clock needs to be right, and then creates the next generation. If the old holder wakes up, it sees
the higher lock and stops. Generations only grow, so both believe that they hold the dataset for at
most one heartbeat. Files that both put meanwhile are equal, since their bytes depend only on
sources and configuration; files that differ are refused when publishing.

The lock of a dead process of this machine is taken over at once.
"""

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from streaming_ext.base.errors import StorageError, TransientStorageError, UsageError
from streaming_ext.store.contract import Storage
from streaming_ext.store.holding import Holder
from streaming_ext.store.locations import LOCK_FOLDER

LEASE_SECONDS = 30.0
BEAT_SECONDS = 5.0
_WATCH_SECONDS = 1.0
_CONFIRM_SECONDS = 0.5
_LOCK = re.compile(rf"{LOCK_FOLDER}/\.lock-(\d{{1,12}})")
RELEASED = b'{"released": true}\n'


class Lockable(Storage, Protocol):
    """A storage that can refuse to replace a file."""

    def put_new(self, path: str, data: bytes) -> bool:
        """Put a file if there is none; return False if another process put one."""
        ...


class Lease:
    """The hold of one run on a dataset."""

    def __init__(self, storage: Lockable) -> None:
        self._storage = storage
        self._token = uuid.uuid4().hex
        self._generation = 0
        self._beats = 0
        self._renewed = 0.0
        self._lost: str | None = None
        self._ended = threading.Event()

    def require(self) -> None:
        """Make sure that this run still holds the dataset.

        Raises:
            StorageError: another run took it over, or the lock could not be renewed for long.
        """
        if self._lost is None and time.monotonic() - self._renewed > LEASE_SECONDS:
            self._lost = f"its lock could not be renewed for {LEASE_SECONDS:.0f} s"
        if self._lost is not None:
            raise StorageError(
                f"{self._storage}: this run lost its hold on the output ({self._lost}) and stops, "
                "so that no two runs write there. Run the same command again to resume."
            )

    @contextmanager
    def held(self, report: Callable[[str], None]) -> Iterator[None]:
        """Hold the dataset for the block.

        Args:
            report: called with a message about the run that holds the lock.

        Raises:
            UsageError: another run is at work.
        """
        self._take(report)
        beat = threading.Thread(target=self._keep, name="shardmill-lease", daemon=True)
        beat.start()
        try:
            yield
        finally:
            self._ended.set()
            beat.join(LEASE_SECONDS)
            # If the store does not answer, the next run waits for the lease to expire.
            if self._lost is None and not beat.is_alive():
                with suppress(TransientStorageError):
                    self._storage.put(_path(self._generation), RELEASED)

    def _content(self) -> bytes:
        self._beats += 1
        value = {**Holder.myself().model_dump(), "token": self._token, "beat": self._beats}
        return (json.dumps(value, sort_keys=True) + "\n").encode()

    def _generations(self) -> list[int]:
        found = (_LOCK.fullmatch(path) for path in self._storage.list(LOCK_FOLDER))
        return sorted(int(match[1]) for match in found if match)

    def _take(self, report: Callable[[str], None]) -> None:
        """Create the next generation.

        Raises:
            UsageError: another run is at work.
            StorageError: the lock could not be taken for `LEASE_SECONDS`, though nobody held it.
        """
        tried_since: float | None = None
        while True:
            generations = self._generations()
            latest = max(generations, default=0)
            if latest and not self._wait_until_free(latest, report):
                continue  # removed meanwhile; the next listing shows what exists
            tried_since = tried_since or time.monotonic()
            if self._create(latest + 1):
                for old in generations:
                    self._storage.remove(_path(old))
                return
            if time.monotonic() - tried_since > LEASE_SECONDS:
                raise StorageError(
                    f"{self._storage}: its lock {_path(latest + 1)} cannot be taken for "
                    f"{LEASE_SECONDS:.0f} s. A dataset needs a store that lists and keeps what was "
                    "put, and that refuses a conditional PUT (If-None-Match: *) only if the "
                    "object exists. If no other run is at work, remove the lock."
                )
            report(f"trying again to take the lock of {self._storage}")
            time.sleep(_CONFIRM_SECONDS)

    def _create(self, generation: int) -> bool:
        """Create a lock; return whether it is ours and has the highest number."""
        began = time.monotonic()
        if not self._storage.put_new(_path(generation), self._content()):
            return False
        # Some servers check first and then write, so several processes may be told that they
        # created the lock. A moment later the lock has the content of only one of them.
        time.sleep(_CONFIRM_SECONDS)
        if not self._is_ours(generation):
            return False
        if self._generations()[-1:] != [generation]:
            self._storage.remove(_path(generation))
            return False
        self._generation, self._renewed = generation, began
        return True

    def _is_ours(self, generation: int) -> bool:
        try:
            content = json.loads(self._storage.read(_path(generation)))
        except (FileNotFoundError, ValueError):
            return False
        return isinstance(content, dict) and content.get("token") == self._token

    def _wait_until_free(self, generation: int, report: Callable[[str], None]) -> bool:
        """Watch a lock until it is released or expires; return False if it was removed meanwhile.

        Raises:
            UsageError: the holder of the lock lives.
        """
        first: bytes | None = None
        deadline = time.monotonic() + LEASE_SECONDS
        while True:
            try:
                content = self._storage.read(_path(generation))
            except FileNotFoundError:
                return False
            holder = Holder.noted(content)
            lives = holder.lives()
            if content == RELEASED or lives is False:
                return True
            first = first or content
            if content != first or lives:
                raise UsageError(
                    f"Another run is writing to {self._storage}: {holder}. Wait for it, stop it, "
                    "or use another --output."
                )
            if time.monotonic() > deadline:
                return True
            report(
                f"waiting for another run ({holder}) to let go of {self._storage}, or to show no "
                f"sign of life for {LEASE_SECONDS:.0f} s"
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
                # The listing may leave our lock out, so its content decides.
                if not self._is_ours(self._generation):
                    self._lost = "its lock is gone or another's"
                    return
                self._storage.put(_path(self._generation), self._content())
                self._renewed = began
            except TransientStorageError:
                continue  # `require` limits how long this may go on
            except StorageError as error:
                self._lost = str(error)
                return


def _path(generation: int) -> str:
    return f"{LOCK_FOLDER}/.lock-{generation:08}"
