"""A dataset below a prefix of an object store.

A file is put with one request, or with a multipart upload that is completed at the end. So the
store shows the new object or the old one, never a part of it.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.store.buckets import Bucket, split_url
from streaming_ext.store.contract import Storage
from streaming_ext.store.lease import Lease
from streaming_ext.store.scratch import user_scratch


class ObjectStorage(Storage):
    """A dataset in a bucket; see `Storage`."""

    remote = True
    puts_at_once = 4  # enough to fill a link while requests wait for their answers

    def __init__(self, url: str, bucket: Bucket | None = None) -> None:
        scheme, name, prefix = split_url(url)
        self._bucket = bucket or Bucket(scheme=scheme, name=name)
        self._folder = f"{prefix}/" if prefix else ""
        self._url = f"{scheme}://{name}/{prefix}".rstrip("/")
        self._lease: Lease | None = None

    def __str__(self) -> str:
        return self._url

    @property
    def name(self) -> str:
        """The last part of the URL, and a hash of the whole URL."""
        digest = hashlib.sha256(self._url.encode()).hexdigest()[:12]
        return f"{self._url.rsplit('/', 1)[-1]}-{digest}"

    @property
    def scratch_parent(self) -> Path:
        """The user's own folder in the temporary folder."""
        return user_scratch()

    def _key(self, path: str) -> str:
        return f"{self._folder}{self.require_inside(path)}"

    def create(self) -> None:
        """Make sure that the bucket exists and may be listed; a prefix need not be made."""
        self._bucket.require_listable(self._folder)

    def put(self, path: str, data: bytes) -> None:
        """Put a file in one step; replace an existing file."""
        self._bucket.put(self._key(path), data)

    def put_file(self, path: str, file: Path, *, lasting: bool = True) -> None:
        """Put a local file in one step; replace an existing file. An object always lasts."""
        self._bucket.put(self._key(path), file)

    def adopt(self, other: Storage, path: str, to: str, size: int) -> bool:
        """Copy an object inside the store, if the store can."""
        if not isinstance(other, ObjectStorage) or other._bucket.scheme != self._bucket.scheme:
            return False
        key, name, source = self._key(to), other._bucket.name, other._key(path)
        copy = f"copy {other}/{path} to"
        if not self._bucket.ask(copy, key, lambda store: store.copy(name, source, key)):
            return False
        copied = self._bucket.find(key).get(key)
        if copied is not None and copied.size != size:
            raise CorruptDatasetError(f"{other}/{path} has {copied.size} bytes, expected {size}.")
        return True

    def put_new(self, path: str, data: bytes) -> bool:
        """Put a file if there is none; return False if another process put one."""
        try:
            self._bucket.put(self._key(path), data, new=True)
        except FileExistsError:
            with suppress(FileNotFoundError):
                return self.read(path) == data  # it is ours if only the answer was lost
            return False
        return True

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return self._bucket.read(self._key(path))

    def read_into(self, path: str, room: memoryview, seen: Callable[[memoryview], object]) -> int:
        """Read a large file; `seen` is called once, with the whole content."""
        data = memoryview(self.read(path))[: len(room)]
        room[: len(data)] = data
        seen(data)
        return len(data)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file, with one request."""
        if start == end:
            return b""
        return self._bucket.read(self._key(path), span=(start, end))

    def list(self, folder: str = "") -> dict[str, int]:
        """Return every file below a folder, sorted: path relative to the root -> size in bytes."""
        base = f"{self._key(folder)}/" if folder else self._folder
        found = self._bucket.find(base)
        return {key.removeprefix(self._folder): found[key].size for key in sorted(found)}

    def remove(self, path: str) -> None:
        """Remove a file."""
        key = self._key(path)
        with suppress(FileNotFoundError):
            self._bucket.ask("remove", key, lambda store: store.remove(key))

    def above(self) -> Iterator[str]:
        """Yield the URL of each prefix that contains the root, up to the bucket."""
        url = self._url
        while url.count("/") > 2:
            url = url.rpartition("/")[0]
            yield url

    @contextmanager
    def exclusive(self, report: Callable[[str], None] = lambda message: None) -> Iterator[None]:
        """Hold the dataset by an object that only one run can create."""
        self._lease = Lease(self)
        try:
            with self._lease.held(report):
                yield
        finally:
            self._lease = None

    def require_held(self) -> None:
        """Make sure that no other run took over the dataset."""
        if self._lease is not None:
            self._lease.require()
