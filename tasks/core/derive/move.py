"""Putting files on an output: every byte read and hashed on its way, or none of them moved."""

import mmap
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Semaphore

import xxhash

from streaming_ext.base.errors import CorruptDatasetError, ScratchError, command
from streaming_ext.format.schema import FileRecord, content_hash
from streaming_ext.store import LocalStorage, Storage, open_storage
from tasks.core.workers.messages import Job, JobProgress, Kept, MadePart, Message, Report


class Block(Message):
    """Some consecutive bytes of a file: how many, and their content hash."""

    size: int
    xxh128: str


class Move(Message):
    """A file that is to lie on the output.

    Attributes:
        root: URL of the dataset or export that it is of.
        path: where it lies there.
        to: where it goes, below the root of the output.
        blocks: all of its bytes.
    """

    root: str
    path: str
    to: str
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, root: str, file: FileRecord, to: str | None = None) -> "Move":
        """The move of a file that is recorded as a whole."""
        block = Block(size=file.size, xxh128=file.xxh128)
        return cls(root=root, path=file.path, to=to or file.path, blocks=(block,))

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return sum(block.size for block in self.blocks)


class Text(Message):
    """A small file of text, such as a record."""

    path: str
    text: str

    @property
    def file(self) -> FileRecord:
        """Its path, size and hash."""
        return FileRecord.of(self.path, self.text.encode())


class Unit(Message):
    """Files that go together: the texts when all others are there.

    Attributes:
        documents, tokens: that they hold, where that is told.
    """

    moves: tuple[Move, ...] = ()
    texts: tuple[Text, ...] = ()
    documents: int = 0
    tokens: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each file on the output, in bytes."""
        return {move.to: move.size for move in self.moves} | {
            text.path: text.file.size for text in self.texts
        }


Open = Callable[[str], Storage]

_BLOCK = 64 * 2**20  # bytes that are read at once
_IN_MEMORY = 128 * 2**20  # what is larger goes through scratch on its way between two stores
_held = Semaphore(8)  # files of a process that are held in memory on their way


class MoveJob(Job[MadePart]):
    """Put the files of a unit on the output.

    Attributes:
        read: whether each byte is read and compared with its hash; else a storage may give a file
            another name, or copy it by itself.
        scratch: folder for files on their way.
    """

    unit: Unit
    output: str
    scratch: str
    read: bool

    def do(self, kept: Kept, report: Report) -> MadePart:
        """See `move_unit`."""
        output, scratch = kept.storage(self.output), Path(self.scratch)
        return move_unit(
            self.unit, output, scratch, read=self.read, report=report, opened=kept.storage
        )


def move_unit(
    unit: Unit,
    output: Storage,
    scratch: Path,
    *,
    read: bool,
    report: Report = lambda progress: None,
    opened: Open = open_storage,
) -> MadePart:
    """Put the files of a unit in place, several at once; its texts behind them.

    Args:
        unit: says which.
        output: takes them.
        scratch: folder for files on their way.
        read: see `MoveJob`.
        report: called with what is done.
        opened: the storage behind a URL.

    Raises:
        CorruptDatasetError: a file is missing, or is not the recorded one.
        StorageError: the output or scratch is full, gone or not writable.
    """
    began = time.monotonic()
    total, done = max(sum(move.size for move in unit.moves), 1), 0
    mover = _Mover(output, scratch, read=read)
    roots = {move.root for move in unit.moves}
    sources = {root: opened(root) for root in roots}  # with the connections that each keeps
    with ThreadPoolExecutor(output.puts_at_once, thread_name_prefix="shardmill-move") as threads:
        running = {
            threads.submit(mover.move, sources[move.root], move): move for move in unit.moves
        }
        try:
            for ended in as_completed(running):
                ended.result()
                done += running[ended].size
                report(JobProgress(fraction=done / total, text_bytes=done))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
        list(threads.map(lambda text: output.put(text.path, text.text.encode()), unit.texts))
    return MadePart(
        documents=unit.documents,
        tokens=unit.tokens,
        size=sum(unit.sizes.values()),
        seconds=time.monotonic() - began,
    )


def check(source: Storage, move: Move) -> None:
    """Read a file and compare it with its hashes.

    Raises:
        FileNotFoundError: there is none.
        CorruptDatasetError: it is not the recorded one.
        StorageError: it cannot be read, or is shorter.
    """
    if isinstance(source, LocalStorage):
        source.read_range(move.path, 0, 0)  # whether it may be read at all
        _check_file(source, move, source.root / move.path)
        return
    for _ in _blocks_of(source, move):
        pass


class _Mover:
    """Puts one file after another on an output."""

    def __init__(self, output: Storage, scratch: Path, *, read: bool) -> None:
        self._output, self._scratch, self._read = output, scratch, read

    def move(self, source: Storage, move: Move) -> None:
        """Put a file in place.

        Raises:
            CorruptDatasetError: it is missing, or is not the recorded one.
        """
        try:
            if not self._read and self._output.adopt(source, move.path, move.to, move.size):
                return
            if move.size <= _IN_MEMORY and self._output.remote:  # read once, hashed, put
                if isinstance(source, LocalStorage):
                    source.read_range(move.path, 0, 0)  # whether it may be read at all
                    _require_size(source, move, source.root / move.path)
                with _held:
                    data = source.read_range(move.path, 0, move.size)
                    self._output.put(move.to, _checked(source, move, data))
            elif isinstance(source, LocalStorage):
                self._from_disk(source, move)
            else:
                self._through_scratch(source, move)
        except FileNotFoundError as error:
            raise _damaged(source, move, "missing") from error

    def _from_disk(self, source: LocalStorage, move: Move) -> None:
        file = source.root / move.path
        source.read_range(move.path, 0, 0)  # whether it may be read at all
        if self._output.remote:
            _check_file(source, move, file)
            self._output.put_file(move.to, file)
            return
        with self._on_scratch() as copy:
            copy.copy(file)
            _check_file(source, move, copy.path)  # what was written, not what was read
            self._output.put_file(move.to, copy.path)

    def _through_scratch(self, source: Storage, move: Move) -> None:
        with self._on_scratch() as copy:
            copy.write(_blocks_of(source, move))
            self._output.put_file(move.to, copy.path)

    def _on_scratch(self) -> "_OnScratch":
        return _OnScratch(self._scratch / uuid.uuid4().hex)


class _OnScratch:
    """A file on its way, gone when the block ends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "_OnScratch":
        return self

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)

    def copy(self, file: Path) -> None:
        """Have it hold what a file does, copied by the system."""
        self._make(lambda: shutil.copyfile(file, self.path))

    def write(self, blocks: Iterator[bytes]) -> None:
        """Have it hold some bytes."""
        self._make(lambda: self.path.write_bytes(b""))
        for block in blocks:
            self._make(lambda block=block: self._append(block))  # type: ignore[misc]

    def _append(self, block: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(block)

    def _make(self, make: Callable[[], object]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            make()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ScratchError(f"Cannot write to scratch {self.path.parent}: {reason}.") from error


def _require_size(source: Storage, move: Move, file: Path) -> None:
    if (size := file.stat().st_size) != move.size:
        raise _damaged(source, move, f"{size} bytes, expected {move.size}")


def _check_file(source: Storage, move: Move, file: Path) -> None:
    _require_size(source, move, file)
    if not move.size:
        return
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _checked(source, move, data)


def _blocks_of(source: Storage, move: Move) -> Iterator[bytes]:
    """A file's bytes in bounded blocks, compared with their hashes as they come."""
    start = 0
    for block in move.blocks:
        digest, end = xxhash.xxh3_128(), start + block.size
        while start < end:
            data = source.read_range(move.path, start, min(start + _BLOCK, end))
            digest.update(data)
            start += len(data)
            yield data
        _compare(source, move, digest.hexdigest(), block.xxh128)


def _checked(source: Storage, move: Move, data: bytes | mmap.mmap) -> bytes:
    """The bytes of a file, which are the recorded ones."""
    start = 0
    with memoryview(data) as view:
        if len(view) != move.size:
            raise _damaged(source, move, f"{len(view)} bytes, expected {move.size}")
        for block in move.blocks:
            with view[start : start + block.size] as part:
                found = content_hash(part)
            _compare(source, move, found, block.xxh128)
            start += block.size
    return data if isinstance(data, bytes) else b""


def _compare(source: Storage, move: Move, found: str, wanted: str) -> None:
    if found != wanted:
        raise _damaged(source, move, f"its content hash is {found}, expected {wanted}")


def _damaged(source: Storage, move: Move, problem: str) -> CorruptDatasetError:
    return CorruptDatasetError(
        f"{source}/{move.path}: {problem}. {command('verify', source)} checks every file."
    )
