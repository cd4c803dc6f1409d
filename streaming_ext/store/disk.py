"""A dataset in a folder on a local or shared disk."""

import builtins
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePosixPath

from streaming_ext.base.errors import CorruptDatasetError, StorageError, UsageError
from streaming_ext.store.contract import Storage
from streaming_ext.store.holding import held, reason
from streaming_ext.store.scratch import drop_scratch

INCOMING = ".incoming"  # files on their way; a folder of its own, so that leftovers are found
# How file systems, and two of them, say that a file cannot have a second name.
NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS}


def place(
    root: Path,
    target: Path,
    make: Callable[[Path], object],
    synced_as: int = os.O_RDWR,
    *,
    lasting: bool = True,
) -> None:
    """Make a file among those on their way, and rename it to its place, over an older one.

    Args:
        root: the folder of the dataset; its folder of files on their way is there.
        target: the file's place below it; folders between are made.
        make: makes the file at the path that it is given.
        synced_as: the flags by which it is opened to be flushed to disk.
        lasting: flush the file and its folder to disk, to last even if the machine loses power.

    Raises:
        StorageError: the disk is full, the folder was removed or may not be written to.
    """
    incoming = root / INCOMING / uuid.uuid4().hex
    try:
        make(incoming)
        if lasting:
            _sync(incoming, synced_as)
        _make_folders(target.parent, below=root)
        incoming.replace(target)
        incoming.unlink(missing_ok=True)  # stays where it was the same file already
        if lasting:
            _sync(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        incoming.unlink(missing_ok=True)
        path = target.relative_to(root)
        raise StorageError(f"Cannot write {path} to {root}: {reason(error)}.") from error


def link_or_copy(file: Path, to: Path) -> None:
    """Give a file a second name, or copy it where the file system cannot do that.

    Raises:
        OSError: neither is possible.
    """
    try:
        to.hardlink_to(file)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        shutil.copyfile(file, to)


def _make_folders(folder: Path, *, below: Path) -> None:
    # Never the root itself: where that was removed half way, writing must fail.
    if folder != below:
        _make_folders(folder.parent, below=below)
        folder.mkdir(exist_ok=True)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_AT_ONCE = 2**20  # bytes: stays in the cache of a core


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
            (self.root / INCOMING).mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(f"Cannot write to {self.root}: {reason(error)}.") from error

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
        place(self.root, self._path(path), lambda incoming: incoming.write_bytes(data))

    def put_file(self, path: str, file: Path, *, lasting: bool = True) -> None:
        """Put a file in place in one step, over an older one: a second name where that is possible.

        Raises:
            StorageError: as `put`.
        """
        target = self._path(path)
        place(self.root, target, lambda incoming: link_or_copy(file, incoming), lasting=lasting)

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
            place(
                self.root,
                self._path(to),
                lambda incoming: incoming.hardlink_to(file.resolve()),
                os.O_RDONLY,
            )
        except StorageError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_LINKS:
                return False
            raise
        return True

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
            raise StorageError(f"Cannot read {path} in {self.root}: {reason(error)}.") from error

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
                        raise _short(self.root, path, start + len(data), end)
                    data += more
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"Cannot read {path} in {self.root}: {reason(error)}.") from error
        return data

    def read_range_into(
        self, path: str, start: int, room: memoryview, seen: Callable[[memoryview], object]
    ) -> None:
        """Fill memory that is there with the bytes from `start` on, told to `seen` as they come.

        Raises:
            FileNotFoundError: there is none.
            StorageError: it cannot be read, or is shorter.
        """
        held = 0
        with self._reading(path), self._path(path).open("rb", buffering=0) as file:
            while held < len(room):
                came = os.preadv(file.fileno(), [room[held : held + _AT_ONCE]], start + held)
                if not came:
                    raise _short(self.root, path, start + held, start + len(room))
                seen(room[held : held + came])
                held += came

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
            raise StorageError(f"Cannot remove {path} of {self.root}: {reason(error)}.") from error
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
        incoming = self.root / INCOMING
        try:
            return sorted(f"{INCOMING}/{file.name}" for file in incoming.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StorageError(f"Cannot list {incoming}: {reason(error)}.") from error

    def remove_incoming(self) -> None:
        """Remove what a killed run left on its way."""
        for leftover in self.leftovers():
            try:
                (self.root / leftover).unlink(missing_ok=True)
            except OSError as error:
                raise StorageError(
                    f"Cannot remove {leftover} of {self.root}: {reason(error)}."
                ) from error

    def close(self) -> None:
        """Remove what is only needed while writing."""
        shutil.rmtree(self.root / INCOMING, ignore_errors=True)

    def tidy(self, scratch: Path) -> None:
        """Remove what a run left that was killed once its output was whole.

        Nothing is touched where another run is at work.

        Args:
            scratch: its folder for work in progress.

        Raises:
            StorageError: something is left that may not be removed.
        """
        if (self.root / INCOMING).exists() or scratch.exists():
            with suppress(UsageError), self.exclusive():
                self.remove_incoming()
                self.close()
                drop_scratch(scratch)

    def exclusive(
        self, tell: Callable[[str], None] = lambda words: None
    ) -> AbstractContextManager[int]:
        """Hold the dataset against another run; see `holding.held`."""
        return held(self.root, tell)

    def require_held(self) -> None:
        """The kernel keeps the lock as long as the process lives."""


def _not_listed(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise StorageError(f"Cannot list {error.filename}: {reason(error)}.") from error


def _short(root: Path, path: str, found: int, end: int) -> StorageError:
    return StorageError(f"{root}/{path} ends at byte {found}, where bytes up to {end} should be.")
