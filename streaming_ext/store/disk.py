"""A dataset in a folder on a local or shared disk."""

import builtins
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from streaming_ext.base.errors import CorruptDatasetError, StorageError, UsageError, reason_of
from streaming_ext.store.contract import Storage
from streaming_ext.store.holding import held

INCOMING = ".incoming"  # files in progress, in a folder of their own so that leftovers are found
# Errors of file systems that cannot give a file a second name.
NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS}
_BLOCK_BYTES = 2**20  # small enough to stay in the cache of a core


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Raise errors of the system as `StorageError`, except `FileNotFoundError`."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"Cannot {what}: {reason_of(error)}.") from error


def link_or_copy(file: Path, to: Path) -> None:
    """Give a file a second name, or copy it if the file system cannot do that.

    Raises:
        OSError: neither is possible.
    """
    try:
        to.hardlink_to(file)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        shutil.copyfile(file, to)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LocalStorage(Storage):
    """A dataset in a folder on a local or shared disk.

    A file is flushed to disk before it is renamed, so that it is complete even if the machine loses
    power.
    """

    remote = False
    puts_at_once = 2  # so that the next shard is made while the disk writes one

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.root.name

    @property
    def scratch_parent(self) -> Path:
        """The parent of the folder, on the same disk."""
        return self.root.parent

    def _path(self, path: str) -> Path:
        return self.root / self.require_inside(path)

    def free_bytes(self) -> int | None:
        """Return the free space of the disk for this user, in bytes."""
        with suppress(OSError):
            return shutil.disk_usage(self.root).free
        return None

    def create(self) -> None:
        """Make the root folder."""
        self.require_no_file()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            (self.root / INCOMING).mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(f"Cannot write to {self.root}: {reason_of(error)}.") from error

    def require_no_file(self) -> None:
        """Refuse a root folder that is a file.

        Raises:
            UsageError: the root is a file.
        """
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(f"{self} is a file: the output is a folder, s3://, gs:// or az://.")

    def put(self, path: str, data: bytes) -> None:
        """Put a file in one step; replace an existing file."""
        self._put(path, lambda incoming: incoming.write_bytes(data))

    def put_file(self, path: str, file: Path, *, lasting: bool = True) -> None:
        """Put a local file in one step, as a second name if possible; replace an existing file."""
        self._put(path, lambda incoming: link_or_copy(file, incoming), lasting=lasting)

    def _put(self, path: str, make: Callable[[Path], object], *, lasting: bool = True) -> None:
        """Make a file in the folder of files in progress, and rename it.

        Args:
            path: the path of the file in this storage; missing folders are made.
            make: a function that makes the file at a given path.
            lasting: True to flush the file and its folder to disk, to survive a loss of power.

        Raises:
            StorageError: the disk is full, or the folder was removed or is not writable.
        """
        target, incoming = self._path(path), self.root / INCOMING / uuid.uuid4().hex
        try:
            make(incoming)  # fails if the root was removed
            target.parent.mkdir(parents=True, exist_ok=True)
            if lasting:
                _sync(incoming)
            incoming.replace(target)
            incoming.unlink(missing_ok=True)  # renaming does nothing if both names are of one file
            if lasting:
                _sync(target.parent)
        except OSError as error:
            incoming.unlink(missing_ok=True)
            raise StorageError(
                f"Cannot write {path} to {self.root}: {reason_of(error)}."
            ) from error

    def adopt(self, other: Storage, path: str, to: str, size: int) -> bool:
        """Give a file on the same disk a second name; symbolic links are followed."""
        if not isinstance(other, LocalStorage):
            return False
        file = other._path(path)
        if (found := file.stat().st_size) != size:
            raise CorruptDatasetError(f"{other}/{path} has {found} bytes, expected {size}.")
        try:
            # A symbolic link would get the second name itself.
            self._put(to, lambda new: new.hardlink_to(file.resolve()))
        except StorageError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_LINKS:
                return False
            raise
        return True

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with self._reading(path):
            return self._path(path).read_bytes()

    def read_into(self, path: str, room: memoryview, seen: Callable[[memoryview], object]) -> int:
        """Read a large file into given memory, block by block."""
        held = 0
        with self._reading(path), self._path(path).open("rb", buffering=0) as file:
            while came := file.readinto(room[held : held + _BLOCK_BYTES]):
                seen(room[held : held + came])
                held += came
        return held

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file.

        Raises:
            FileNotFoundError: there is no such file.
            StorageError: the file cannot be read, or ends before `end`.
        """
        with self._reading(path), self._path(path).open("rb") as file:
            file.seek(start)
            data = file.read(end - start)
        if len(data) < end - start:
            raise StorageError(
                f"{self}/{path} ends at byte {start + len(data)}, expected bytes up to {end}."
            )
        return data

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        with _failing(f"read {path} in {self.root}"):
            try:
                yield
            except NotADirectoryError as error:  # there is a file in place of a folder
                raise FileNotFoundError(path) from error

    def list(self, folder: str = "") -> dict[str, int]:
        """Return every file below a folder, sorted: path relative to the root -> size in bytes.

        Names at the root that begin with a dot do not belong to the dataset: they are files in
        progress, and shards that training unpacks there.

        Raises:
            StorageError: a folder cannot be listed.
        """

        def refuse(error: OSError) -> None:
            with (
                _failing(f"list {error.filename}"),
                suppress(FileNotFoundError, NotADirectoryError),
            ):
                raise error

        base = self._path(folder) if folder else self.root
        found = {}
        for parent, folders, names in os.walk(base, onerror=refuse):
            at_root = Path(parent) == self.root
            if at_root:
                folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                if at_root and name.startswith("."):
                    continue
                file = Path(parent, name)
                with suppress(FileNotFoundError):  # removed meanwhile, or a dangling link
                    status = file.stat()
                    if stat.S_ISREG(status.st_mode):
                        found[file.relative_to(self.root).as_posix()] = status.st_size
        return dict(sorted(found.items()))

    def remove(self, path: str) -> None:
        """Remove a file, and its folder if it is empty afterwards."""
        target = self._path(path)
        with _failing(f"remove {path} of {self.root}"), suppress(NotADirectoryError):
            target.unlink(missing_ok=True)
        if target.parent != self.root:
            with suppress(OSError):  # not empty, or gone
                target.parent.rmdir()

    def above(self) -> Iterator[str]:
        """Return the path of each folder that contains the root; symbolic links are followed."""
        return map(str, self.root.resolve().parents)

    def leftovers(self) -> builtins.list[str]:
        """Return the files in progress that killed runs left."""
        incoming = self.root / INCOMING
        with _failing(f"list {incoming}"), suppress(FileNotFoundError, NotADirectoryError):
            return sorted(f"{INCOMING}/{file.name}" for file in incoming.iterdir())
        return []

    def remove_incoming(self) -> None:
        """Remove the files in progress that killed runs left."""
        for leftover in self.leftovers():
            with _failing(f"remove {leftover} of {self.root}"):
                (self.root / leftover).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder of files in progress."""
        shutil.rmtree(self.root / INCOMING, ignore_errors=True)

    def exclusive(
        self, report: Callable[[str], None] = lambda message: None
    ) -> AbstractContextManager[int]:
        """Hold the dataset against other runs with a lock of the kernel; see `holding.held`."""
        return held(self.root, report)
