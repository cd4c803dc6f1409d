"""Bringing the pieces of a part here."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.parts.part import Part, Piece
from streaming_ext.text.sources.fetch import fetch
from streaming_ext.text.sources.fetch_piece import fetch_piece
from tasks.core.workers.jobs import FetchedPart, FetchJob
from tasks.core.workers.messages import JobProgress

_AT_ONCE = 16  # small files: each takes a request or two, most of whose time is waiting


def fetch_part(
    part: Part,
    folder: Path,
    report: Callable[[int], None] = lambda done: None,
    *,
    options: ReadOptions,
) -> tuple[list[Path], int]:
    """Where the bytes of each piece lie now, and how many were fetched for them.

    Args:
        part: remote.
        folder: on scratch.
        report: called with the bytes that are here.
        options: all that will be read.

    Raises:
        SourceError: a file changed or is gone.
        StorageError: see `fetch`.
    """
    if len(part.pieces) == 1:
        ((source, span),) = [(piece.source, piece.span) for piece in part.pieces]
        if span is None:
            path, fetched = fetch(source, folder, report, options=options)
        else:
            path, fetched = fetch_piece(source, folder, report, options=options, span=span)
        return [path], fetched
    paths, total, done = [], 0, 0

    def one(piece: Piece) -> tuple[Path, int]:
        return fetch(piece.source, folder, options=options)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for piece, (path, fetched) in zip(part.pieces, threads.map(one, part.pieces), strict=True):
            paths.append(path)
            total += fetched
            done += piece.size
            report(done)
    return paths, total


def fetch_for(job: FetchJob, report: Callable[[JobProgress], None]) -> FetchedPart:
    """Do the job of fetching a part; raises what `fetch_part` does."""
    began = time.monotonic()
    paths, fetched = fetch_part(
        job.part,
        Path(job.folder),
        lambda done: report(JobProgress(fraction=done / max(job.part.size, 1))),
        options=job.options,
    )
    return FetchedPart(
        paths=tuple(map(str, paths)), fetched_bytes=fetched, seconds=time.monotonic() - began
    )
