"""A dataset below a prefix of an object store: S3 and what speaks it, Google's, Azure's.

A file is one PUT, or a multipart upload that is completed at the end: the store shows the new
object or the old one, never a part of it.
"""

import builtins
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path, PurePosixPath
from typing import cast

from streaming_ext.base.errors import CorruptDatasetError, StorageError, UsageError
from streaming_ext.store.client import ObjectClient, split_url
from streaming_ext.store.contract import Storage
from streaming_ext.store.lease import Lease
from streaming_ext.store.s3 import PIECE_BYTES
from streaming_ext.store.scratch import drop_scratch, user_scratch

_PUTS_AT_ONCE = 4
_MAPPED_BYTES = 2 * PIECE_BYTES  # what is smaller goes in one request
_MOST_HELD_BYTES = 2**31


class ObjectStorage:
    """A dataset in a bucket; see `Storage` for the words."""

    def __init__(self, url: str, client: ObjectClient | None = None) -> None:
        scheme, bucket, self._prefix = split_url(url)
        self._client = client or ObjectClient(scheme=scheme, bucket=bucket)
        self._root = f"{bucket}/{self._prefix}" if self._prefix else bucket
        self._url = f"{scheme}://{self._root}"
        self._lease: Lease | None = None

    def __str__(self) -> str:
        return self._url

    @property
    def name(self) -> str:
        """The last part of the prefix, and a hash of the whole URL."""
        digest = hashlib.sha256(self._url.encode()).hexdigest()[:12]
        return f"{self._root.rsplit('/', 1)[-1]}-{digest}"

    @property
    def scratch_parent(self) -> Path:
        """A folder of the user's own in the temporary folder."""
        return user_scratch()

    @property
    def puts_at_once(self) -> int:
        """Enough to fill a link while each request waits for its answer."""
        return _PUTS_AT_ONCE

    @property
    def remote(self) -> bool:
        """Yes."""
        return True

    @property
    def largest_file(self) -> int | None:
        """What is no S3 takes a file in one request, which is held in memory."""
        return None if self._client.scheme == "s3" else _MOST_HELD_BYTES

    def _key(self, path: str) -> str:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise StorageError(f"{path!r} leads out of {self}")
        return f"{self._folder}{pure}"

    @property
    def _folder(self) -> str:
        return f"{self._prefix}/" if self._prefix else ""

    def free_bytes(self) -> int | None:
        """Nothing tells."""
        return None

    def create(self) -> None:
        """Make sure that the bucket is there and may be listed; a prefix needs no making."""
        self._client.look_at(self._folder, what=f"list {self}")

    def put(self, path: str, data: bytes) -> None:
        """Put a file in place in one step, over an older one."""
        self._client.put(self._key(path), data, what=f"write {self}/{path}")

    def put_file(self, path: str, file: Path, *, lasting: bool = True) -> None:
        """Put a local file in place in one step, over an older one; what is there lasts anyway."""
        try:
            with file.open("rb") as opened:
                # Of a large one only the pieces that are under way are in memory.
                large = file.stat().st_size >= _MAPPED_BYTES and self._client.scheme == "s3"
                data = mmap(opened.fileno(), 0, access=ACCESS_READ) if large else opened.read()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StorageError(f"Cannot write {self}/{path} from {file}: {reason}.") from error
        self.put(path, cast("bytes", data))

    def adopt(self, other: Storage, path: str, to: str, size: int) -> bool:
        """Have the store copy an object by itself, where it can.

        Raises:
            FileNotFoundError: there is no such object.
            CorruptDatasetError: it has another size.
        """
        if not isinstance(other, ObjectStorage) or other._client.scheme != self._client.scheme:
            return False
        key, what = other._key(path), f"copy {other}/{path} to {self}/{to}"
        place = f"{other._client.bucket}/{key}"
        if not self._client.copy(place, self._key(to), size=size, what=what):
            return False
        copied = self._client.find(self._key(to), what=what).get(self._key(to))
        if copied is not None and copied.size != size:
            raise CorruptDatasetError(f"{other}/{path} has {copied.size} bytes, expected {size}.")
        return True

    def put_new(self, path: str, data: bytes) -> bool:
        """Put a file where there is none; False where there is one, by another."""
        try:
            self._client.put(self._key(path), data, what=f"write {self}/{path}", new=True)
        except FileExistsError:
            # Ours, where the answer to the first attempt was lost.
            try:
                return self.read(path) == data
            except FileNotFoundError:
                return False
        return True

    def read(self, path: str) -> bytes:
        """The content of a file."""
        return self._client.read(self._key(path), what=f"read {self}/{path}")

    def read_into(self, path: str, room: memoryview, seen: Callable[[memoryview], object]) -> int:
        """Read a large file, seen at once when all of it is here."""
        data = memoryview(self.read(path))[: len(room)]
        room[: len(data)] = data
        seen(data)
        return len(data)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of a file, in one request."""
        if start == end:
            return b""
        return self._client.read(self._key(path), what=f"read {self}/{path}", span=(start, end))

    def read_range_into(
        self, path: str, start: int, room: memoryview, seen: Callable[[memoryview], object]
    ) -> None:
        """Fill memory with the bytes from `start` on, in one request; seen when all are here."""
        room[:] = self.read_range(path, start, start + len(room))
        seen(room)

    def list(self, folder: str = "") -> dict[str, int]:
        """Every file below a folder."""
        base = f"{self._key(folder)}/" if folder else self._folder
        found = self._client.find(base, what=f"list {self}")
        skip = len(self._folder)
        return {key[skip:]: found[key].size for key in sorted(found)}

    def remove(self, path: str) -> None:
        """Remove a file."""
        try:
            self._client.remove(self._key(path), what=f"remove {self}/{path}")
        except FileNotFoundError:
            return

    def above(self) -> Iterator[tuple["ObjectStorage", str]]:
        """Each prefix that it lies in, up to the bucket."""
        scheme = self._client.scheme
        names = self._prefix.split("/") if self._prefix else []
        for depth in range(len(names) - 1, -1, -1):
            prefix, below = "/".join(names[:depth]), "/".join(names[depth:])
            url = f"{scheme}://{self._client.bucket}/{prefix}"
            yield ObjectStorage(url, self._client), below

    def leftovers(self) -> builtins.list[str]:
        """None: open uploads of killed runs are for the bucket's lifecycle rule."""
        return []

    def remove_incoming(self) -> None:
        """Nothing lies around here."""

    def tidy(self, scratch: Path) -> None:
        """Remove its scratch."""
        if scratch.exists():
            with suppress(UsageError, StorageError), self.exclusive():
                drop_scratch(scratch)

    @contextmanager
    def exclusive(self, tell: Callable[[str], None] = lambda words: None) -> Iterator[None]:
        """Hold the dataset against another run, through an object that only one can make."""
        self._lease = Lease(self)
        try:
            with self._lease.held(tell):
                yield
        finally:
            self._lease = None

    def require_held(self) -> None:
        """Make sure that no other run took the dataset over."""
        if self._lease is not None:
            self._lease.require()

    def close(self) -> None:
        """Nothing lies around here."""
