"""The raw shards of one split on a local disk: fetched once for all processes of a machine.

A shard under its final name is whole and was verified: it is written under another name and
renamed. Processes agree through locks that the kernel drops when their holder dies, so nothing
has to be cleaned up after a kill. The folder's name holds the hash of the index: the shards of a
rewritten dataset never meet the old ones.
"""

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from streaming_ext.dataset.compression import decompress
from streaming_ext.dataset.foreign import flattened
from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.index import TokenIndex
from streaming_ext.errors import CorruptDatasetError, StorageError, TransientStorageError
from streaming_ext.shards.remote import FileMissingError, Remote

UNPACKED: Final = ".unpacked"  # below a local dataset whose shards are compressed
DOWNLOADS: Final = 4  # at once, a process and stream; while others are unpacked and verified
_ROOM: Final = 2**40  # the lock of whoever makes room; shards lock the byte of their number


class ShardCache:
    """Where the raw file of each shard is, and how it comes there.

    `evictable` says whether the files may be removed: never those of the dataset itself.
    """

    def __init__(
        self, index: TokenIndex, source: Remote, *, local: Path | None, limit: int | None
    ) -> None:
        """Choose the folder; nothing is written yet.

        Args:
            index: the split.
            source: where its shards are published.
            local: folder of the cache; None to read the shards of a mounted source in place.
            limit: bytes that the folder may hold, None for no limit.
        """
        self.index = index
        self.source = source
        self.limit = limit
        self.in_place = local is None and not any(index.codecs) and index.layout is None
        root = source.path
        if self.in_place and root is not None:
            self.folder = root / index.split
        else:
            base = local if local is not None else Path(root or ".") / UNPACKED
            self.folder = base / f"{index.split or 'shards'}-{index.index_hash[:16]}"
        self._descriptor: tuple[int, int] | None = None  # process, file
        self.forget_process()

    @property
    def evictable(self) -> bool:
        """Whether what lies here can be had again."""
        return not self.in_place

    def path(self, shard: int) -> Path:
        """The raw file of a shard, there or not."""
        return self.folder / self.index.raw_names[shard]

    def label(self, shard: int) -> str:
        """A shard's name for messages, as published."""
        parts = (self.source.url.rstrip("/"), self.index.split, self.index.names[shard])
        return "/".join(part for part in parts if part)

    def fetch(self, shard: int) -> None:
        """Have the raw file of a shard here, by this process or another one.

        Raises:
            CorruptDatasetError: the published file is missing, or twice not the indexed one.
            StorageError: storage refuses, or the local disk does.
        """
        if self.path(shard).exists():
            return
        if self.in_place:
            raise CorruptDatasetError(
                f"Shard {self.label(shard)} is missing. Put it back, or publish the dataset again."
            )
        # The link first: who waits for it must not keep another process from a shard.
        link = contextlib.ExitStack()
        with link:
            link.enter_context(self._link)
            asked = time.monotonic()
            with self._locked(shard, what=self.label(shard)):
                if self.path(shard).exists():
                    return
                # The time that another process of this machine tried in vain counts.
                left = self.source.timeout - (time.monotonic() - asked)
                seconds = max(left, self.source.timeout / 4)
                self._write(shard, self._download(shard, seconds, link.close))

    def discard(self, shard: int) -> None:
        """Remove a damaged copy so that the next `fetch` brings a new one."""
        if self.evictable:
            self.path(shard).unlink(missing_ok=True)

    def touch(self, shard: int) -> None:
        """Mark a shard as used now; only a limited cache asks for it."""
        if self.limit is not None and self.evictable:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.path(shard))

    def _download(self, shard: int, seconds: float, release: Callable[[], None]) -> bytes:
        """The raw content of a published shard.

        Args:
            shard: its number.
            seconds: for each of two attempts, where the first brings a damaged one.
            release: lets another thread download, while this one unpacks.
        """
        index = self.index
        name = f"{index.split}/{index.names[shard]}" if index.split else index.names[shard]
        size = int(index.sizes[shard])
        cause = ""
        for _ in range(2):
            try:
                data = self.source.read(name, limit=size, seconds=seconds)
            except FileMissingError as error:
                raise CorruptDatasetError(f"Shard {error}") from error
            cause = _difference(data, size, index.hashes[shard])
            if not cause:
                release()
                try:
                    return self._unpacked(shard, data)
                except CorruptDatasetError as error:
                    cause = str(error)
        raise CorruptDatasetError(
            f"Shard {self.label(shard)} is damaged, fetched twice: {cause}. "
            "Publish the dataset again."
        )

    def _unpacked(self, shard: int, data: bytes) -> bytes:
        """What is read of a published shard: its samples of token ids, not compressed."""
        index, codec = self.index, self.index.codecs[shard]
        if codec is not None:
            data = decompress(data, codec=codec, raw_size=int(index.stored_raw_sizes[shard]))
            if cause := _difference(data, len(data), index.stored_raw_hashes[shard]):
                raise CorruptDatasetError(cause)
        if index.layout is None:
            return data
        samples = int(index.samples[shard])
        data = flattened(index.layout, data, samples=samples, where=self.label(shard))
        if len(data) != index.raw_sizes[shard]:
            raise CorruptDatasetError(
                f"its samples have not the {index.sample_tokens} {index.dtype} ids of those of the "
                "first shard; only sets whose samples have one length are read"
            )
        return data

    def _write(self, shard: int, raw: bytes) -> None:
        path = self.path(shard)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._room_for(len(raw)):
                for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # of processes that died
                    leftover.unlink(missing_ok=True)
                temporary = path.parent / f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp"
                temporary.write_bytes(raw)
                temporary.replace(path)
        except OSError as error:
            raise StorageError(
                f"The cache cannot hold {path}: {error}. Give local= a folder that this user may "
                "write, with room, or set cache_limit=."
            ) from error

    @contextlib.contextmanager
    def _room_for(self, wanted: int) -> Iterator[None]:
        """Evict until `wanted` more bytes fit, and let nobody else write before they are there."""
        if self.limit is None:
            yield
            return
        # The lock of the file is between processes, the other one between threads of this one.
        with self._room, self._locked(_ROOM, what=f"the cache {self.folder}"):
            held = []
            for path in self.folder.rglob(f"*{Path(self.index.raw_names[0]).suffix}"):
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    held.append((status.st_mtime_ns, path, status.st_size))
            used = sum(size for _, _, size in held)
            for _, path, size in sorted(held):  # least recently used first
                if used + wanted <= self.limit:
                    break
                path.unlink(missing_ok=True)
                used -= size
            yield

    @contextlib.contextmanager
    def _locked(self, byte: int, *, what: str) -> Iterator[None]:
        """Hold one byte of the lock file against other processes."""
        descriptor = self._lock_file()
        # Another process may be fetching: it has its own deadline, and time to write.
        deadline = time.monotonic() + 2 * self.source.timeout + 10
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
                break
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise StorageError(
                        f"{self.folder}/.lock cannot be locked: {error}. "
                        "Give local= a folder on a local disk."
                    ) from error
            if time.monotonic() > deadline:
                raise TransientStorageError(
                    f"Another process holds {what} for over {2 * self.source.timeout + 10:g} s."
                )
            time.sleep(0.01)
        try:
            yield
        finally:
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)

    def _lock_file(self) -> int:
        # One descriptor a process: closing any one would drop all locks of the process.
        with self._guard:
            if self._descriptor is None or self._descriptor[0] != os.getpid():
                try:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                    self._descriptor = (os.getpid(), os.open(self.folder / ".lock", flags, 0o666))
                except OSError as error:
                    raise StorageError(
                        f"The cache {self.folder} cannot be used: {error}. Give local= a folder "
                        "that this user may write."
                    ) from error
            return self._descriptor[1]

    def __getstate__(self) -> dict[str, object]:
        """Leave out what belongs to this process."""
        return self.__dict__ | {
            "_descriptor": None, "_guard": None, "_room": None, "_link": None
        }  # fmt: skip

    def __setstate__(self, state: dict[str, object]) -> None:
        """Make anew what belongs to this process."""
        self.__dict__.update(state)
        self.forget_process()

    def forget_process(self) -> None:
        """Drop what a fork copied: a lock may be held by a thread that is not here."""
        self._guard, self._room = threading.Lock(), threading.Lock()
        self._link = threading.BoundedSemaphore(DOWNLOADS)


def _difference(data: bytes, size: int, digest: str | None) -> str:
    if len(data) != size:
        # One byte beyond the size was asked for, no more.
        got = "more" if len(data) > size else str(len(data))
        return f"{got} bytes, the index says {size}"
    if digest is not None and (found := content_hash(data)) != digest:
        return f"XXH3-128 {found}, the index says {digest}"
    return ""
