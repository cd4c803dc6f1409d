"""`from_files`: a sample of each active file in turns; one that ends gives its place to the next.

Three files of 2, 1 and 2 samples with two of them active: a1 b1 a2 c1 c2.

A file is read in pieces, of which a worker has every so many-th. Of two files of 3 and 2 pieces,
worker 1 of 2 has these:

    file 0: . 1 .      file 1: 0 .
"""

import contextlib
import hashlib
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import FormatName, OnBadDocument, ReadOptions
from streaming_ext.text.documents.files import Span
from streaming_ext.text.fetch import fetch
from streaming_ext.text.fetch_span import fetch_span
from streaming_ext.text.formats import format_of
from streaming_ext.text.listing import list_sources
from streaming_ext.text.parts.cutting import cut_evenly
from streaming_ext.text.parts.looking import can_be_cut
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.local import kept_as_listed
from streaming_ext.transforms.block import Block, State, concat
from streaming_ext.transforms.flow import Flow, Input, Opening, growing, others_have_any
from streaming_ext.transforms.sources import permuted

PIECE_BYTES: Final = 2**22  # that are fetched and read at once
_MOST: Final = 2**16  # samples at once
_FETCHING: Final = 8  # threads, where bytes are waited for
_END_BYTES: Final = 4096  # at the beginning and at the end of a file
_LOOKED_INTO: Final = 4096  # files


def known_by(sources: Sequence[SourceFile]) -> str:
    """What a state knows files by.

    Their names and sizes, the version that a server tells, and how local files begin and end: those
    may be copied, which changes their times. A change in the middle that leaves the size is not
    seen, nor is one of a file that is none of 4,096 looked into.

    Raises:
        SourceError: one is gone.
    """
    told = hashlib.sha256()
    for source in sources:
        told.update(f"{source.name} {source.size} {source.version}\n".encode())
    for source in sources[:: -(-len(sources) // _LOOKED_INTO)]:
        if source.local_path is not None:
            try:
                with source.local_path.open("rb") as file:
                    told.update(file.read(_END_BYTES))
                    file.seek(max(file.seek(0, 2) - _END_BYTES, 0))
                    told.update(file.read(_END_BYTES))
            except OSError as error:
                raise SourceError(
                    f"{source.local_path}: cannot be read ({error.strerror})."
                ) from error
    return told.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    """Files that take turns.

    Attributes:
        sources: they.
        options: how documents are read.
        repeat: whether another epoch follows.
        seed: of the files' order in each epoch; None for that of their names.
        active: files that are read at once.
        standby: files whose beginning is fetched before their turn comes.
    """

    sources: Sequence[SourceFile]
    options: ReadOptions
    repeat: bool
    seed: int | None
    active: int
    standby: int

    def open(self, opening: Opening, state: State | None) -> Flow:
        """The samples; text alone where that is all that is asked for."""
        remote = any(source.remote for source in self.sources)
        threads = ThreadPoolExecutor(_FETCHING if remote else 1)
        inputs: dict[int, Input] = {}  # by the number of the file, counted through all epochs
        try:
            yield from self._turns(opening, state, threads, inputs)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for file in inputs.values():
                file.close()

    def _turns(
        self, opening: Opening, state: State | None, threads: Executor, inputs: dict[int, Input]
    ) -> Flow:
        count, repeat = len(self.sources), self.repeat

        @lru_cache(2)
        def order(epoch: int) -> Sequence[int]:
            return range(count) if self.seed is None else permuted(count, self.seed, epoch)

        def begin(number: int, piece: int | None = None, skip: int = 0) -> None:
            if number not in inputs:
                index = order(number // count)[number % count]
                file = _File(self.sources[index], index, self.options, skip, threads)
                inputs[number] = Input(file, opening, {"source": piece, "skip": skip})

        at = state or {"epoch": 0, "next": 0, "any": False, "active": ()}
        epoch, following, some = int(at["epoch"]), int(at["next"]), bool(at["any"])
        active = deque(epoch * count + place for place, *_ in at["active"])
        for number, (_, *where) in zip(active, at["active"], strict=True):
            begin(number, *where)
        for most in growing(_MOST):
            made, size, passes, over = [Block()], 0.0, epoch, False
            while (rows := sum(map(len, made))) < most and size < PIECE_BYTES:
                while len(active) < self.active and following < count:
                    active.append(epoch * count + following)
                    begin(active[-1])
                    following += 1
                if not active:
                    if repeat and not some:  # a worker without a piece, or none with a sample
                        repeat = False
                        if not others_have_any(replace(self, repeat=False), opening):
                            raise UsageError(
                                "from_files(repeat=True) of files without a sample never ends."
                            )
                    over = not repeat
                    if over:
                        break
                    epoch, following, some = epoch + 1, 0, False
                    continue
                ready = epoch * count + following + self.standby
                for number in range(epoch * count + following, ready):
                    if repeat or number < (epoch + 1) * count:
                        begin(number)
                files = [inputs[number] for number in active]
                block, ended, taken = _some_turns(files, most - rows)
                made.append(block)
                size += taken
                if ended is not None:  # those before it had their turn, and now it leaves
                    active.rotate(-ended)
                    inputs.pop(active.popleft()).close()
                some = some or len(made[-1]) > 0
            told = [[number % count, *inputs[number].place().values()] for number in active]
            here = {"epoch": epoch, "next": following, "any": some, "active": told}
            yield concat(made).at(here, passes)
            if over:
                return


@dataclass(frozen=True, slots=True)
class _File:
    """One file; its places are pieces, None for the first that a worker has.

    Attributes:
        source: it.
        number: of it.
        options: how documents are read.
        skip: samples of the first piece that were used before.
        threads: that read ahead.
    """

    source: SourceFile
    number: int
    options: ReadOptions
    skip: int
    threads: Executor

    def open(self, opening: Opening, state: Any) -> Flow:
        """Its blocks, each of which is made before it is asked for."""
        ahead = self._ahead(self._blocks(opening, state))
        next(ahead)  # begins with the first one
        return ahead

    def _ahead(self, flow: Flow) -> Flow:
        coming = self.threads.submit(next, flow, None)
        try:
            yield Block()
            while (block := coming.result()) is not None:
                coming = self.threads.submit(next, flow, None)
                yield block
        finally:
            coming.cancel()
            coming.add_done_callback(lambda _: flow.close())  # perhaps a thread is within it

    def _blocks(self, opening: Opening, begin: int | None) -> Flow:
        source, (own, workers) = self.source, opening.share
        column = opening.column if opening.text else None
        options = replace(self.options, columns=(column or "text",))
        form = format_of(source.url, options)
        spans: Sequence[Span | None] = [None]
        if source.size > PIECE_BYTES and can_be_cut(source, options):
            spans = cut_evenly(source.size, PIECE_BYTES)
        first = (own - self.number) % workers if begin is None else begin
        for piece in range(first, len(spans), workers):
            rows, span = 0, spans[piece]
            found: Iterator[Block]
            with _here(source, span, options, whole=column is None) as path:
                if column is None and form.has_records:
                    found = map(Block, form.read_records(path, options, name=source.url, span=span))
                else:
                    texts = form.read(
                        path, options, name=source.url, span=span, batch_bytes=PIECE_BYTES
                    )
                    found = (Block({options.columns[0]: batch.texts}) for batch in texts)
                for block in found:
                    rows += len(block)
                    yield block
            if piece == first and rows < self.skip:
                raise UsageError("A state names a sample of a file that is not there: it changed.")
            yield Block((), piece + workers)


@contextlib.contextmanager
def _here(
    source: SourceFile, span: Span | None, options: ReadOptions, *, whole: bool
) -> Iterator[Path]:
    """Where the bytes of a piece lie, as long as they are read.

    Raises:
        SourceError: the file is gone or changed; names it.
        StorageError: a server refuses, or does not answer.
    """
    if source.local_path is not None:
        other = SourceError(
            f"{source.url}: changed since it was listed. Put it back, or start anew: a state "
            "of the old file does not go on in the new one."
        )
        with kept_as_listed(source, source.local_path, changed=other) as path:
            yield path
        return
    with tempfile.TemporaryDirectory(prefix="shardmill-") as name:
        if span is None:
            path, _ = fetch(source, Path(name), options=None if whole else options)
        else:
            path, _ = fetch_span(source, Path(name), options=options, span=span)
        yield path


def _some_turns(files: Sequence[Input], most: int) -> tuple[Block, int | None, float]:
    """A sample of each file, then a second of each, and so on.

    Returns:
        The samples, the number of the file that is at its end, if there is one, and the bytes of
        the samples, about. Files before one at its end have one turn.
    """
    ended = next((number for number, file in enumerate(files) if not file.filled()), None)
    turns, each = 1, sum(PIECE_BYTES / file.size for file in files)
    if ended is None:
        few = min(most // len(files), int(PIECE_BYTES / each))
        turns = max(1, min(few, *(file.have for file in files)))
    blocks = [file.use(turns) for file in files[:ended]]
    # (turns, blocks): sample `turn` of each block
    order = np.arange(turns)[:, None] + np.arange(len(blocks)) * turns
    whole = concat(blocks)
    return whole.gather(order.reshape(-1)) if len(blocks) > 1 else whole, ended, each * turns


def some_files(
    urls: str | Sequence[str],
    name: FormatName | Literal["auto"],
    on_bad: OnBadDocument,
    **turns: Any,
) -> Files:
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
    options = ReadOptions(source_format=known, on_bad_document=on_bad)
    return Files(sources=sources, options=options, **turns)
