"""A dataset in a folder on a local or shared disk."""

import builtins
import errno
import fcntl
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from streaming_ext.dataset.layout import RUNS_FOLDER
from streaming_ext.errors import CorruptDatasetError, StorageError, UsageError
from tasks.core.storage.contract import Storage
from tasks.core.storage.holder import Holder

_INCOMING = ".incoming"  # files on their way; a folder of its own, so that leftovers are found
# How file systems, and two of them, say that a file cannot have a second name.
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS}
_AT_ONCE = 2**20  # bytes: stays in the cache of a core
_LOCK_WAIT_SECONDS = 15.0  # workers of a killed run end within a second or two


class LocalStorage:
    """A dataset in a folder on a local or shared disk; paths are relative to its root.

    A file is written beside and renamed into place, flushed to disk first, so that it is whole
    even if the machine loses power.
    """

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
        """Beside the folder, on the same disk."""
        return self.root.parent

    @property
    def puts_at_once(self) -> int:
        """Two, so that the next shard is made while the disk has one in hand."""
        return 2

    @property
    def remote(self) -> bool:
        """No."""
        return False

    @property
    def largest_file(self) -> int | None:
        """Any size."""
        return None

    def _path(self, path: str) -> Path:
        pure = PurePosixPath(path)
        if not pure.parts or pure.is_absolute() or ".." in pure.parts:
            raise StorageError(f"{path!r} leads out of {self.root}")
        return self.root / pure

    def free_bytes(self) -> int | None:
        """What the disk has free for this user."""
        try:
            found = os.statvfs(self.root)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize

    def create(self) -> None:
        """Make the root folder.

        Raises:
            StorageError: it cannot be made or written to.
            UsageError: it is a file.
        """
        self.require_no_file()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            (self.root / _INCOMING).mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(f"Cannot write to {self.root}: {_reason(error)}.") from error

    def require_no_file(self) -> None:
        """Refuse a root folder that is a file.

        Raises:
            UsageError: it is one.
        """
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(f"{self} is a file: the output is a folder, s3://, gs:// or az://.")

    def put(self, path: str, data: bytes) -> None:
        """Put a file in place in one step, over an older one.

        Raises:
            StorageError: the disk is full, the folder was removed or may not be written to.
        """
        self._put(path, lambda incoming: incoming.write_bytes(data))

    def put_file(self, path: str, file: Path, *, lasting: bool = True) -> None:
        """Put a file in place in one step, over an older one: a second name where that is possible.

        Raises:
            StorageError: as `put`.
        """
        self._put(path, lambda incoming: _link_or_copy(file, incoming), lasting=lasting)

    def adopt(self, other: Storage, path: str, to: str, size: int) -> bool:
        """Give a file a second name, where it lies on the same disk; links to it are followed.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptDatasetError: it has another size.
            StorageError: as `put`.
        """
        if not isinstance(other, LocalStorage):
            return False
        file = other._path(path)
        if (found := file.stat().st_size) != size:
            raise CorruptDatasetError(f"{other}/{path} has {found} bytes, expected {size}.")
        try:
            # Not a second name of a link; and whoever gives a file may not let it be written to.
            self._put(to, lambda incoming: incoming.hardlink_to(file.resolve()), os.O_RDONLY)
        except StorageError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_LINKS:
                return False
            raise
        return True

    def _put(
        self,
        path: str,
        make: Callable[[Path], object],
        synced_as: int = os.O_RDWR,
        *,
        lasting: bool = True,
    ) -> None:
        target = self._path(path)
        incoming = self.root / _INCOMING / uuid.uuid4().hex
        try:
            make(incoming)
            if lasting:
                _sync(incoming, synced_as)
            _make_folders(target.parent, below=self.root)
            incoming.replace(target)
            incoming.unlink(missing_ok=True)  # stays where it was the same file already
            if lasting:
                _sync(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            incoming.unlink(missing_ok=True)
            raise StorageError(f"Cannot write {path} to {self.root}: {_reason(error)}.") from error

    def read(self, path: str) -> bytes:
        """The content of a file.

        Raises:
            FileNotFoundError: there is none.
            StorageError: it cannot be read.
        """
        with self._reading(path):
            return self._path(path).read_bytes()

    def read_into(self, path: str, room: memoryview, seen: Callable[[memoryview], object]) -> int:
        """Read a large file into memory that is there, told to `seen` as it comes.

        Raises:
            FileNotFoundError: there is none.
            StorageError: it cannot be read.
        """
        held = 0
        with self._reading(path), self._path(path).open("rb", buffering=0) as file:
            while came := file.readinto(room[held : held + _AT_ONCE]):
                seen(room[held : held + came])
                held += came
        return held

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except NotADirectoryError as error:  # a file stands where a folder would have to
            raise FileNotFoundError(path) from error
        except OSError as error:
            raise StorageError(f"Cannot read {path} in {self.root}: {_reason(error)}.") from error

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of a file.

        Raises:
            FileNotFoundError: there is none.
            StorageError: it cannot be read, or is shorter.
        """
        try:
            with self._path(path).open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), end - start, start)  # not copied, as it is whole
                while len(data) < end - start:
                    more = os.pread(file.fileno(), end - start - len(data), start + len(data))
                    if not more:
                        raise StorageError(
                            f"{self.root}/{path} ends at byte {start + len(data)}, where bytes up "
                            f"to {end} should be."
                        )
                    data += more
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"Cannot read {path} in {self.root}: {_reason(error)}.") from error
        return data

    def list(self, folder: str = "") -> dict[str, int]:
        """Every file below a folder, sorted: path relative to the root -> size in bytes.

        What begins with a dot at the root is no file of the dataset: files on their way, and the
        shards that training unpacks beside it.

        Raises:
            StorageError: a folder may not be looked into.
        """
        base = self._path(folder) if folder else self.root
        found = {}
        for here, folders, names in os.walk(base, onerror=_not_listed):
            at_root = Path(here) == self.root
            if at_root:
                folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                if at_root and name.startswith("."):
                    continue
                file = Path(here, name)
                with suppress(FileNotFoundError):  # removed meanwhile, or a link to nothing
                    status = file.stat()
                    if stat.S_ISREG(status.st_mode):
                        found[file.relative_to(self.root).as_posix()] = status.st_size
        return dict(sorted(found.items()))

    def remove(self, path: str) -> None:
        """Remove a file, and its folder if that is empty then.

        Raises:
            StorageError: it may not be removed.
        """
        target = self._path(path)
        try:
            target.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise StorageError(f"Cannot remove {path} of {self.root}: {_reason(error)}.") from error
        if target.parent != self.root:
            with suppress(OSError):  # not empty, or gone
                target.parent.rmdir()

    def above(self) -> Iterator[tuple["LocalStorage", str]]:
        """Each folder that it lies in, links followed."""
        root = self.root.resolve()
        for folder in root.parents:
            yield LocalStorage(folder), root.relative_to(folder).as_posix()

    def leftovers(self) -> builtins.list[str]:
        """Files that were on their way when a run was killed."""
        incoming = self.root / _INCOMING
        try:
            return sorted(f"{_INCOMING}/{file.name}" for file in incoming.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StorageError(f"Cannot list {incoming}: {_reason(error)}.") from error

    def remove_incoming(self) -> None:
        """Remove what a killed run left on its way."""
        for leftover in self.leftovers():
            try:
                (self.root / leftover).unlink(missing_ok=True)
            except OSError as error:
                raise StorageError(
                    f"Cannot remove {leftover} of {self.root}: {_reason(error)}."
                ) from error

    def close(self) -> None:
        """Remove what is only needed while writing."""
        shutil.rmtree(self.root / _INCOMING, ignore_errors=True)

    @contextmanager
    def exclusive(self) -> Iterator[int]:
        """Hold the dataset against another run; yields a file descriptor that holds it too.

        A process that inherits the descriptor keeps the dataset held until it ends, so workers
        that outlive a killed run by a moment never write into the next one.

        Raises:
            UsageError: another run is at work here.
            StorageError: the file system knows no such locks.
        """
        lock = self.root / RUNS_FOLDER / ".lock"
        try:
            lock.parent.mkdir(exist_ok=True)
            file = lock.open("a+b", buffering=0)  # what is left in a buffer would fail on closing
        except OSError as error:
            raise StorageError(f"Cannot write {lock}: {_reason(error)}.") from error
        with file:
            deadline = time.monotonic() + _LOCK_WAIT_SECONDS
            while not _locked(file, self.root):
                holder = Holder.noted_in(file)
                if time.monotonic() > deadline or holder.lives():
                    raise UsageError(
                        f"Another run is writing to {self.root}{holder}. Wait for it, stop it, or "
                        "use another --output."
                    )
                time.sleep(0.1)
            Holder.myself().note_in(file)
            try:
                yield file.fileno()
            finally:
                file.truncate(0)

    def require_held(self) -> None:
        """The kernel keeps the lock as long as the process lives."""


def _not_listed(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise StorageError(f"Cannot list {error.filename}: {_reason(error)}.") from error


def _locked(file: BinaryIO, root: Path) -> bool:
    """Take the lock; False where another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StorageError(
            f"{root} cannot be held against other runs: its file system takes no locks "
            f"(flock: {_reason(error)}). Mount it with them (Lustre: -o flock; NFS: version 4, or "
            "its lock service running), or use another --output, on a local disk or in an object "
            "store."
        ) from error
    return True


def _make_folders(folder: Path, *, below: Path) -> None:
    # Never the root itself: where that was removed half way, writing must fail.
    if folder != below:
        _make_folders(folder.parent, below=below)
        folder.mkdir(exist_ok=True)


def _link_or_copy(file: Path, to: Path) -> None:
    try:
        to.hardlink_to(file)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(file, to)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
