"""`from_files`: a sample of each active file in turns; the next file replaces a file that ends.

Three files of 2, 1 and 2 samples with two of them active: a1 b1 a2 c1 c2.

A file is read in spans, which are split among the workers. Of two files with 3 and 2 spans, worker
1 of 2 reads these:

    file 0: . 1 .      file 1: 0 .
"""

import contextlib
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final

import numpy as np

from streaming_ext.base.arrays import ceil_div
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store.scratch import new_folder
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.files import LocalBytes, Span
from streaming_ext.text.fetch import fetch
from streaming_ext.text.formats import can_be_cut, format_of
from streaming_ext.text.parts import cut_evenly
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.local import require_as_listed
from streaming_ext.transforms.block import Block, State
from streaming_ext.transforms.flow import Flow, Input, Open, Subset, block_sizes, take_in_turns
from streaming_ext.transforms.sources import permuted

SPAN_BYTES: Final = 2**22  # that are fetched and read at once
_MOST: Final = 2**16  # samples at once
_FETCHING: Final = 8  # threads that wait for bytes
_END_BYTES: Final = 4096  # that are hashed at the beginning and at the end of a file
_LOOKED_INTO: Final = 4096  # files whose content is hashed, at most


def fingerprint(sources: Sequence[SourceFile]) -> str:
    """Hash the properties by which a state recognizes files.

    These are names and sizes, the version that a server reports, and the beginning and end of local
    files, but no times, which a copy changes. A change in the middle of a local file that keeps the
    size goes unnoticed. With more than 4,096 files, any change that keeps the size goes unnoticed
    in most of them.

    Raises:
        SourceError: a file is gone.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.name} {source.size} {source.version}\n".encode())
    for source in sources[:: ceil_div(len(sources), _LOOKED_INTO)]:
        if source.local_path is not None:
            file = LocalBytes(source.local_path, source.url)
            digest.update(file.read(0, min(_END_BYTES, source.size)))
            digest.update(file.read(max(source.size - _END_BYTES, 0), source.size))
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
    """Read the samples of all files, once.

    Args:
        subset: the subset of the spans of each file.
        state: the state of this flow: `next`, the position of the first file that was not active
            yet, and `active`, with the position, span and used samples of each active file.
        epoch: the number of the pass.
        sources: the files that take turns.
        options: the options of reading documents.
        seed: the seed of the files' order in each epoch; None for the order of their names.
        active: the number of files that are read at once.
        standby: the number of files whose beginning is fetched before their turn comes.
    """
    order = permuted(len(sources), seed, epoch)
    opened: dict[int, Input] = {}  # by position in the order
    threads = ThreadPoolExecutor(_FETCHING if any(one.remote for one in sources) else 1)

    def open_file(position: int, span: int | None = None, skip: int = 0) -> None:
        if position not in opened:
            number = order[position]
            spans = partial(_spans, source=sources[number], options=options, number=number)
            ahead = partial(_read_ahead, source=spans, threads=threads)
            opened[position] = Input(ahead, subset, {"source": span, "skip": skip})
            opened[position].more()  # start reading

    at = state or {"next": 0, "active": []}
    following, turns = at["next"], deque(position for position, *_ in at["active"])
    try:
        for each in at["active"]:
            open_file(*each)
        for most in block_sizes(_MOST):
            while len(turns) < active and following < len(order):
                turns.append(following)
                following += 1
            if not turns:
                return
            for position in (*turns, *range(following, min(following + standby, len(order)))):
                open_file(position)
            files = [opened[position] for position in turns]
            ready = [*takewhile(Input.has, files)]
            if not ready:
                opened.pop(turns.popleft()).close()
                continue
            # Take one turn before a file that has ended, else as many as fit into a span's bytes.
            fitting = int(1 / sum(1 / file.size for file in ready))
            count = min(most // len(ready), fitting, *(file.have for file in ready))
            turns_each = max(1, count if len(ready) == len(files) else 1)
            block = take_in_turns(ready, np.tile(np.arange(len(ready)), turns_each))
            turns.rotate(-len(ready))  # the file after them has ended, or these are all files
            states = [[position, *opened[position].state().values()] for position in turns]
            yield block.at({"next": following, "active": states})
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for file in opened.values():
            file.close()


def _read_ahead(subset: Subset, state: State, *, source: Open, threads: Executor) -> Flow:
    """Yield an empty block, then the blocks of a source, each made before it is needed."""
    flow = source(subset, state)
    coming = threads.submit(next, flow, None)
    try:
        yield Block()
        while (block := coming.result()) is not None:
            coming = threads.submit(next, flow, None)
            yield block
    finally:
        coming.cancel()
        coming.add_done_callback(lambda _: flow.close())  # a thread may still run the flow


def _spans(
    subset: Subset, state: int | None, *, source: SourceFile, options: ReadOptions, number: int
) -> Flow:
    """Read the spans of one file for a worker; states are span numbers, None for the first."""
    own, workers = subset
    form = format_of(source.url, options)
    spans: Sequence[Span | None] = [None]
    if source.size > SPAN_BYTES and can_be_cut(source, options):
        spans = cut_evenly(source.size, SPAN_BYTES)
    first = (own - number) % workers if state is None else state
    for position in range(first, len(spans), workers):
        with _fetched(source, spans[position], options) as path:
            rows = DocumentRows(LocalBytes(path, source.url), options, span=spans[position])
            yield from map(Block, form.records(rows))
        yield Block(state=position + workers)


@contextlib.contextmanager
def _fetched(source: SourceFile, span: Span | None, options: ReadOptions) -> Iterator[Path]:
    """Yield the path of a file that holds the bytes of a span, as long as they are read.

    Raises:
        SourceError: the file is gone or has changed; the message names it.
        StorageError: a server refuses, or does not answer.
    """
    if source.local_path is not None:
        require_as_listed(source)
        yield source.local_path
        require_as_listed(source)
        return
    with new_folder() as folder:
        path, _ = fetch(source, folder, options=options if span else None, span=span)
        yield path
