"""Putting files on an output: every byte read and hashed on the way, or files taken as they are."""

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Semaphore

from streaming_ext.base.errors import CorruptDatasetError, command
from streaming_ext.format.schema import FileRecord
from streaming_ext.store import Storage, open_storage
from streaming_ext.store.scratch import writing_scratch
from tasks.core.build.build import Stretch
from tasks.core.build.engine import wrong_bytes
from tasks.core.workers.messages import Job, JobProgress, Kept, MadePart, Message, Report


class Move(Message):
    """A file to put on the output.

    Attributes:
        root: URL of the dataset or export that has the file.
        path: of the file there.
        spans: all bytes of the file, under its path on the output.
    """

    root: str
    path: str
    spans: tuple[Stretch, ...]

    @classmethod
    def of(cls, root: str, file: FileRecord, to: str | None = None) -> "Move":
        """The move of a recorded file; to the same path unless given."""
        span = Stretch(to or file.path, 0, file.size, file.xxh128)
        return cls(root=root, path=file.path, spans=(span,))

    @property
    def to(self) -> str:
        """Path of the file on the output."""
        return self.spans[0].path

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return sum(span.size for span in self.spans)


class Text(Message):
    """A small file of text, such as a record."""

    path: str
    text: str

    @property
    def file(self) -> FileRecord:
        """Its path, size and hash."""
        return FileRecord.of(self.path, self.text.encode())


class FileGroup(Message):
    """Files that are put together; the texts after all others.

    Attributes:
        moves: files to put.
        texts: small files.
        documents, tokens: that they hold, if they are a part.
    """

    moves: tuple[Move, ...] = ()
    texts: tuple[Text, ...] = ()
    documents: int = 0
    tokens: int = 0

    @property
    def spans(self) -> list[Stretch]:
        """All bytes of the files on the output."""
        texts = [Stretch.of(text.file) for text in self.texts]
        return [*(span for move in self.moves for span in move.spans), *texts]

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each file on the output in bytes, by its path."""
        moved = {move.to: move.size for move in self.moves}
        return moved | {text.path: text.file.size for text in self.texts}


_IN_MEMORY = 128 * 2**20  # larger files go through scratch on their way to a remote output
_held = Semaphore(8)  # files in memory, per process


class MoveJob(Job[MadePart]):
    """Put the files of a group on the output.

    Attributes:
        group: of files.
        output: URL of it.
        scratch: folder for files on their way.
        read: whether each byte is read and compared with its hash; else a storage may give a file
            another name, or copy it by itself.
    """

    group: FileGroup
    output: str
    scratch: str
    read: bool

    def do(self, kept: Kept, report: Report) -> MadePart:
        """See `put_group`."""
        output, scratch = kept.storage(self.output), Path(self.scratch)
        return put_group(
            self.group, output, scratch, read=self.read, report=report, opened=kept.storage
        )


def put_group(
    group: FileGroup,
    output: Storage,
    scratch: Path,
    *,
    read: bool,
    report: Report = lambda progress: None,
    opened: Callable[[str], Storage] = open_storage,
) -> MadePart:
    """Put the files of a group in place, several at once; its texts after them.

    Args:
        group: of files.
        output: takes them.
        scratch: folder for files on their way.
        read: see `MoveJob`.
        report: called with the progress.
        opened: the storage at a URL.

    Raises:
        CorruptDatasetError: a file is missing, or is not the recorded one.
        StorageError: a file is shorter than recorded, or the output or scratch is not writable.
    """
    began = time.monotonic()
    total, done = max(sum(move.size for move in group.moves), 1), 0
    sources = {root: opened(root) for root in {move.root for move in group.moves}}

    def put(move: Move) -> int:
        source = sources[move.root]
        try:
            if read or not output.adopt(source, move.path, move.to, move.size):
                _put_checked(source, move, output, scratch)
        except FileNotFoundError:
            raise _damaged(source, move, "missing") from None
        return move.size

    with ThreadPoolExecutor(output.puts_at_once, thread_name_prefix="shardmill-move") as threads:
        try:
            for ended in as_completed([threads.submit(put, move) for move in group.moves]):
                done += ended.result()
                report(JobProgress(fraction=done / total, text_bytes=done))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
        list(threads.map(lambda text: output.put(text.path, text.text.encode()), group.texts))
    return MadePart(
        documents=group.documents,
        tokens=group.tokens,
        size=sum(group.sizes.values()),
        seconds=time.monotonic() - began,
    )


def _put_checked(source: Storage, move: Move, output: Storage, scratch: Path) -> None:
    """Put a file whose bytes are the recorded ones; local outputs take it from scratch."""

    def read(take: Callable[[bytes], object]) -> None:
        for span in move.spans:
            if problem := wrong_bytes(source, span._replace(path=move.path), take):
                raise _damaged(source, move, problem)

    if output.remote and move.size <= _IN_MEMORY:
        with _held:
            data = bytearray()
            read(data.extend)
            output.put(move.to, bytes(data))
        return
    path = scratch / uuid.uuid4().hex
    try:
        with writing_scratch(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("wb", buffering=0)

        def write(data: bytes) -> None:
            with writing_scratch(path):
                file.write(data)

        with file:
            read(write)
        output.put_file(move.to, path)
    finally:
        path.unlink(missing_ok=True)


def _damaged(source: Storage, move: Move, problem: str) -> CorruptDatasetError:
    return CorruptDatasetError(
        f"{source}/{move.path}: {problem}. {command('verify', source)} checks every file."
    )
