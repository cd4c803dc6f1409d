"""The raw shards of one split on a local disk, fetched once for all processes of a machine.

A shard under its final name is whole and verified, since it is written under another name and then
renamed. Processes coordinate through lock files, and through locks on the shards: in a limited
cache, a process that maps a shard locks its file, which is not removed before the last map is gone.
The kernel drops the locks of a killed process. The folder's name holds the hash of the index, so
the shards of a rewritten dataset never mix with the old ones.
"""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from streaming_ext.base.errors import (
    CorruptDatasetError,
    FileMissingError,
    StorageError,
    TransientStorageError,
)
from streaming_ext.format.index import TokenIndex
from streaming_ext.format.shard import difference
from streaming_ext.reading.made_once import written_atomically
from streaming_ext.store.file_lock import alone
from streaming_ext.store.remote import Remote

UNPACKED: Final = ".unpacked"  # a folder in a local dataset whose shards are compressed
DOWNLOADS: Final = 4  # at once, per process and stream; others are unpacked and verified meanwhile
ROOM: Final = ".lock"  # held while room is made; each shard has its own lock, see `_alone`
_ASIDE: Final = ".evicted"


class ShardCache:
    """The raw files of the shards of one split, fetched when they are needed.

    Attributes:
        in_place: True if the dataset's own files are read, which are never removed.
    """

    _came: float  # when the last shard came, on the monotonic clock
    _gave_up: TransientStorageError | None  # the error of a download since then

    def __init__(
        self, index: TokenIndex, source: Remote, *, local: Path | None, limit: int | None
    ) -> None:
        """Choose the folder without writing anything.

        Args:
            index: the index of the split.
            source: the published dataset.
            local: the folder of the cache; None to read the shards of a mounted source in place.
            limit: the bytes that the folder may hold; None for no limit.
        """
        self.index = index
        self.source = source
        self.limit = limit
        self._local = local
        self.in_place = local is None and not any(index.codecs) and index.rewriting is None
        root = source.path
        if self.in_place and root is not None:
            self.folder = root / index.split
        else:
            base = local if local is not None else Path(root or ".") / UNPACKED
            self.folder = base / self.name
        self.start_process()

    @property
    def name(self) -> str:
        """The name of this split's files in the cache, which no other dataset has."""
        return f"{self.index.split or 'shards'}-{self.index.index_hash[:16]}"

    @property
    def beside(self) -> Path:
        """The folder of the files that are made from this split, beside its raw shards."""
        root = self.source.path
        return root / UNPACKED if self.in_place and root is not None else self.folder.parent

    @property
    def is_limited(self) -> bool:
        """True if files are removed to make room."""
        return self.limit is not None and not self.in_place

    def path(self, shard: int) -> Path:
        """Return the path of a shard's raw file, which may not exist yet."""
        return self.folder / self.index.raw_names[shard]

    def label(self, shard: int) -> str:
        """Return a shard's published name, for messages."""
        parts = (self.source.url.rstrip("/"), self.index.split, self.index.names[shard])
        return "/".join(part for part in parts if part)

    def fetch(self, shard: int, close: Callable[[int], None] = lambda shard: None) -> None:
        """Make sure that the raw file of a shard exists; this process or another one fetches it.

        Args:
            shard: the number of the shard.
            close: the function that drops the map of a shard that is evicted, by its number.

        Raises:
            CorruptDatasetError: the published file is missing, or was twice not the indexed one.
            StorageError: storage or the local disk refuses.
        """
        if self.path(shard).exists():
            return
        if self.in_place:
            raise CorruptDatasetError(
                f"Shard {self.label(shard)} is missing. Put it back, or publish the dataset again."
            )
        started = time.monotonic()
        # The link comes first: a shard must not stay locked while this thread waits for the link.
        link = contextlib.ExitStack()
        with link:
            link.enter_context(self._link)
            failure = self._gave_up
            if failure is not None and self._waited(started) > 0.9 * self.source.timeout:
                raise TransientStorageError(
                    f"{self.label(shard)} was waited for behind others, which did not come: "
                    f"{failure}"
                ) from failure
            with self._alone(f".{shard}.lock", what=self.label(shard)):
                if self.path(shard).exists():
                    return
                try:
                    raw = self._download(shard, started, link.close)
                except TransientStorageError as error:
                    self._gave_up = error
                    raise
                self._came, self._gave_up = time.monotonic(), None
                self._write(shard, raw, close)

    def _waited(self, started: float) -> float:
        """Return the seconds since work on a shard started, or since the last one came if later."""
        return time.monotonic() - max(started, self._came)

    def discard(self, shard: int) -> None:
        """Remove a damaged copy so that the next `fetch` brings a new one.

        Raises:
            StorageError: the copy cannot be removed.
        """
        with self._in_words(shard):
            self.path(shard).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _in_words(self, shard: int) -> Iterator[None]:
        """Turn an error of the local disk into a `StorageError`."""
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"The cache cannot hold {self.path(shard)}: {error}. Give local= a folder that "
                "this user may write, with room, or set cache_limit=."
            ) from error

    def open(self, shard: int) -> BinaryIO:
        """Open the raw file of a shard; a limited cache keeps it while it is open or mapped.

        Raises:
            OSError: the file cannot be opened, or does not exist.
        """
        file = self.path(shard).open("rb")
        if self.is_limited:
            fcntl.flock(file, fcntl.LOCK_SH)
            if not os.fstat(file.fileno()).st_nlink:  # removed meanwhile
                file.close()
                raise FileNotFoundError(self.path(shard))
            with contextlib.suppress(OSError):  # a file of another user may be read-only
                os.utime(file.fileno())  # mark it as used now
        return file

    def _download(self, shard: int, started: float, release: Callable[[], None]) -> bytes:
        """Return the raw content of a published shard.

        Args:
            shard: the number of the shard.
            started: the time on the monotonic clock when work on it started.
            release: the function that lets another thread download while this one unpacks.
        """
        index = self.index
        name = f"{index.split}/{index.names[shard]}" if index.split else index.names[shard]
        size = int(index.sizes[shard])
        cause = ""
        # This counts the time in which other threads and processes here tried in vain.
        waited = self._waited(started)
        seconds = max(self.source.timeout - waited, self.source.timeout / 4)
        for _ in range(2):  # a second time if the first copy is damaged
            try:
                data = self.source.read(name, limit=size, seconds=seconds, waited=waited)
            except FileMissingError as error:
                raise CorruptDatasetError(f"Shard {error}") from error
            cause = difference(data, size, index.hashes[shard])
            if not cause:
                release()
                try:
                    return index.unpacked(shard, data, where=self.label(shard))
                except CorruptDatasetError as error:
                    cause = str(error)
        raise CorruptDatasetError(
            f"Shard {self.label(shard)} is damaged, fetched twice: {cause}. "
            "Publish the dataset again."
        )

    def _write(self, shard: int, raw: bytes, close: Callable[[int], None]) -> None:
        path = self.path(shard)
        with self._in_words(shard):
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as room:
                if self.limit is not None:  # no other process may write before these bytes
                    room.enter_context(self._alone(ROOM, what=f"the cache {self.folder}"))
                    self._evict(self.limit - len(raw), close)
                with written_atomically(path) as temporary:
                    temporary.write_bytes(raw)

    def _evict(self, limit: int, close: Callable[[int], None]) -> None:
        """Shrink the folder on the disk to a limit by evicting the least recently used shards.

        Shards that are being read go last. They are only moved aside, which makes their readers
        close them, and count until then. So only the shards that unfinished batches hold can exceed
        the limit.
        """
        held, used = [], self._moved_aside()
        for path in self.folder.rglob(f"*{Path(self.index.raw_names[0]).suffix}"):
            shard = self._numbers.get(str(path.relative_to(self.folder)))
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                used += status.st_size
                if shard is not None:
                    held.append((status.st_mtime_ns, path, shard, status.st_size))
        busy = []
        for _, path, shard, size in sorted(held):
            if used <= limit:
                return
            close(shard)
            if _removed(path):
                used -= size
            else:
                busy.append((path, shard, size))
        for path, shard, size in busy:
            if used <= limit:
                return
            with contextlib.suppress(FileNotFoundError):
                path.replace(self.folder / f".{shard}.{os.getpid()}.{time.monotonic_ns()}{_ASIDE}")
            used -= size

    def _moved_aside(self) -> int:
        """Count the bytes of evicted shards that are still read, and remove the others."""
        used = 0
        for path in self.folder.glob(f".*{_ASIDE}"):
            if not _removed(path):
                used += path.stat().st_size
        return used

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.index.raw_names)}

    def _alone(self, lock: str, *, what: str) -> contextlib.AbstractContextManager[None]:
        """Hold one lock file of the folder against all others."""
        # Another process may be fetching, with its own deadline and time to write.
        return alone(self.folder / lock, patience=2 * self.source.timeout + 10, what=what)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make a new cache in another process."""
        make = partial(ShardCache, local=self._local, limit=self.limit)
        return make, (self.index, self.source)

    def start_process(self) -> None:
        """Replace locks that a fork copied: a thread that is not in this process may hold them."""
        self._link = threading.BoundedSemaphore(DOWNLOADS)
        self._came, self._gave_up = 0.0, None


def _removed(path: Path) -> bool:
    """Remove a file unless somebody reads it; return whether it is gone."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        path.unlink(missing_ok=True)
    return True
