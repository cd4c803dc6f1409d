"""`from_files`: a sample of each active file in turns; the next file replaces one that ends.

Three files of 2, 1 and 2 samples with two of them active: a1 b1 a2 c1 c2.

A file is read in spans, which are dealt out to the workers. Of two files of 3 and 2 spans, worker 1
of 2 has these:

    file 0: . 1 .      file 1: 0 .
"""

import contextlib
import hashlib
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import FormatName, OnBadDocument, ReadOptions
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.files import LocalBytes, Span
from streaming_ext.text.fetch import fetch
from streaming_ext.text.formats import can_be_cut, format_of
from streaming_ext.text.listing import list_sources
from streaming_ext.text.parts import cut_evenly
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.local import kept_as_listed
from streaming_ext.transforms.block import Block, State, concat
from streaming_ext.transforms.flow import Flow, Input, Subset, growing
from streaming_ext.transforms.sources import permuted

SPAN_BYTES: Final = 2**22  # that are fetched and read at once
_MOST: Final = 2**16  # samples at once
_FETCHING: Final = 8  # threads that wait for bytes
_END_BYTES: Final = 4096  # at the beginning and at the end of a file
_LOOKED_INTO: Final = 4096  # files


def fingerprint(sources: Sequence[SourceFile]) -> str:
    """By what a state recognizes files.

    Their names and sizes, the version that a server reports, and how local files begin and end: a
    copy has other times. It leaves out a change in the middle of a local file that keeps the size,
    and all but sizes of most files if there are more than 4,096.

    Raises:
        SourceError: a file is gone.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.name} {source.size} {source.version}\n".encode())
    for source in sources[:: -(-len(sources) // _LOOKED_INTO)]:
        if source.local_path is not None:
            try:
                with source.local_path.open("rb") as file:
                    digest.update(file.read(_END_BYTES))
                    file.seek(max(file.seek(0, 2) - _END_BYTES, 0))
                    digest.update(file.read(_END_BYTES))
            except OSError as error:
                raise SourceError(
                    f"{source.local_path}: cannot be read ({error.strerror})."
                ) from error
    return digest.hexdigest()[:16]


def files_pass(
    subset: Subset,
    state: State,
    epoch: int = 0,
    *,
    sources: Sequence[SourceFile],
    options: ReadOptions,
    seed: int | None,
    active: int,
    standby: int,
) -> Flow:
    """The samples of all files, once.

    Args:
        subset: of the spans of each file.
        state: of this flow: `next`, the position of the first file that was not active yet, and
            `active`, position, span and samples of it that were used for each active file.
        epoch: number of the pass.
        sources: the files that take turns.
        options: how documents are read.
        seed: of the files' order in each epoch; None for the order of their names.
        active: files that are read at once.
        standby: files whose beginning is fetched before their turn comes.
    """
    order: Sequence[int] = range(len(sources))
    if seed is not None:
        order = permuted(len(order), seed, epoch)
    opened: dict[int, Input] = {}  # by position in the order
    threads = ThreadPoolExecutor(_FETCHING if any(one.remote for one in sources) else 1)

    def open_file(position: int, span: int | None = None, skip: int = 0) -> None:
        if position not in opened:
            number = order[position]
            file = _File(sources[number], options, number, skip, threads)
            opened[position] = Input(file, subset, {"source": span, "skip": skip})

    at = state or {"next": 0, "active": []}
    following, turns = int(at["next"]), deque(position for position, *_ in at["active"])
    try:
        for each in at["active"]:
            open_file(*each)
        for most in growing(_MOST):
            made, size = [Block()], 0.0
            while (rows := sum(map(len, made))) < most and size < SPAN_BYTES:
                while len(turns) < active and following < len(order):
                    turns.append(following)
                    following += 1
                if not turns:
                    break
                for position in (*turns, *range(following, following + standby)):
                    if position < len(order):
                        open_file(position)
                block, ended, taken = _some_turns([opened[each] for each in turns], most - rows)
                made.append(block)
                size += taken
                if ended is not None:  # the files before it had their turn
                    turns.rotate(-ended)
                    opened.pop(turns.popleft()).close()
            states = [[position, *opened[position].state().values()] for position in turns]
            yield concat(made).at({"next": following, "active": states})
            if not turns and following == len(order):
                return
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for file in opened.values():
            file.close()


@dataclass(frozen=True, slots=True)
class _File:
    """One file; its states are numbers of spans, None for the first one of a worker.

    Attributes:
        source: the file.
        options: how documents are read.
        number: of it among all files.
        skip: samples of the first span that were used before.
        threads: that read ahead.
    """

    source: SourceFile
    options: ReadOptions
    number: int
    skip: int
    threads: Executor

    def open(self, subset: Subset, state: State) -> Flow:
        """Its blocks; each is made before it is needed."""
        flow = self._prefetched(self._blocks(subset, state))
        next(flow)  # start reading
        return flow

    def _prefetched(self, flow: Flow) -> Flow:
        coming = self.threads.submit(next, flow, None)
        try:
            yield Block()
            while (block := coming.result()) is not None:
                coming = self.threads.submit(next, flow, None)
                yield block
        finally:
            coming.cancel()
            coming.add_done_callback(lambda _: flow.close())  # a thread may be within it

    def _blocks(self, subset: Subset, begin: int | None) -> Flow:
        source, options, (own, workers) = self.source, self.options, subset
        form = format_of(source.url, options)
        spans: Sequence[Span | None] = [None]
        if source.size > SPAN_BYTES and can_be_cut(source, options):
            spans = cut_evenly(source.size, SPAN_BYTES)
        first = (own - self.number) % workers if begin is None else begin
        for number in range(first, len(spans), workers):
            rows, span = 0, spans[number]
            with _fetched(source, span, options) as path:
                documents = DocumentRows(LocalBytes(path, source.url), options, span=span)
                for block in map(Block, form.records(documents)):
                    rows += len(block)
                    yield block
            if number == first and rows < self.skip:
                raise UsageError("A state names a sample of a file that is gone: it changed.")
            yield Block(state=number + workers)


@contextlib.contextmanager
def _fetched(source: SourceFile, span: Span | None, options: ReadOptions) -> Iterator[Path]:
    """Where the bytes of a span lie, until they are read.

    Raises:
        SourceError: the file is gone or changed; names it.
        StorageError: a server refuses, or does not answer.
    """
    if source.local_path is not None:
        changed = SourceError(
            f"{source.url}: changed since it was listed. Put it back, or start anew: a state "
            "of the old file does not fit the new one."
        )
        with kept_as_listed(source, source.local_path, changed=changed) as path:
            yield path
        return
    with tempfile.TemporaryDirectory(prefix="shardmill-") as name:
        read = None if span is None else options
        path, _ = fetch(source, Path(name), options=read, span=span)
        yield path


def _some_turns(files: Sequence[Input], most: int) -> tuple[Block, int | None, float]:
    """A sample of each file, then a second of each, and so on.

    Returns:
        The samples, the number of the first file that is at its end, if any, and the bytes of the
        samples, about. Files before one at its end have one turn.
    """
    ended = None
    for number, file in enumerate(files):
        while not file.have and ended is None:
            ended = None if file.more() else number
    turns, each = 1, sum(SPAN_BYTES / file.size for file in files)
    if ended is None:
        few = min(most // len(files), int(SPAN_BYTES / each))
        turns = max(1, min(few, *(file.have for file in files)))
    blocks = [file.use(turns) for file in files[:ended]]
    # (turns, blocks): sample `turn` of each block
    order = np.arange(turns)[:, None] + np.arange(len(blocks)) * turns
    together = concat(blocks)
    return together.take(order.reshape(-1)) if len(blocks) > 1 else together, ended, each * turns


def listed(
    urls: str | Sequence[str], name: FormatName | Literal["auto"], on_bad: OnBadDocument
) -> tuple[Sequence[SourceFile], ReadOptions]:
    """The files that patterns mean, and how they are read.

    Raises:
        UsageError: there are none.
        StorageError: a server refuses, or does not answer.
    """
    patterns = [urls] if isinstance(urls, str) else [str(url) for url in urls]
    known = None if name == "auto" else name
    sources = list_sources(patterns, any_name=known is not None)
    if not sources:
        raise UsageError("from_files() needs at least one file.")
    return sources, ReadOptions(columns=("text",), source_format=known, on_bad_document=on_bad)
