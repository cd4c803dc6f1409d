"""Bringing the pieces of a part here."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.fetch import came_unchecked, fetch, remove_fetched
from streaming_ext.text.fetch_piece import fetch_piece
from streaming_ext.text.parts.part import Part, Piece
from tasks.core.workers.jobs import FetchedPart
from tasks.core.workers.kept import Kept
from tasks.core.workers.messages import Job, JobProgress, Report

_AT_ONCE = 16  # small files: each takes a request or two, most of whose time is waiting


def fetch_part(
    part: Part,
    folder: Path,
    report: Callable[[int], None] = lambda done: None,
    *,
    options: ReadOptions,
    check: bool = False,
) -> tuple[list[Path], int]:
    """Where the bytes of each piece lie now, and how many were fetched for them.

    Args:
        part: remote.
        folder: on scratch.
        report: called with the bytes that are here.
        options: all that will be read.
        check: whether each piece must be compared with a hash or checksums; files come whole then.

    Raises:
        SourceError: a file changed or is gone, or cannot be checked.
        StorageError: see `fetch`.
    """
    if len(part.pieces) == 1:
        path, fetched = _fetch(part.pieces[0], folder, report, options=options, check=check)
        return [path], fetched
    paths, total, done = [], 0, 0

    def one(piece: Piece) -> tuple[Path, int]:
        return _fetch(piece, folder, options=options, check=check)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for piece, (path, fetched) in zip(part.pieces, threads.map(one, part.pieces), strict=True):
            paths.append(path)
            total += fetched
            done += piece.size
            report(done)
    return paths, total


def _fetch(
    piece: Piece,
    folder: Path,
    report: Callable[[int], None] = lambda done: None,
    *,
    options: ReadOptions,
    check: bool,
) -> tuple[Path, int]:
    source, span = piece.source, piece.span
    if span is None:
        path, fetched = fetch(source, folder, report, options=options, whole=check)
    else:
        path, fetched = fetch_piece(source, folder, report, options=options, span=span)
    if check and came_unchecked(path):
        remove_fetched(path)
        raise SourceError(
            f"{source.url} cannot be checked: "
            + (
                "its server offers no hash, and it holds no checksums. Download it, or leave out "
                "--check-sources."
                if span is None
                else "it is read in parts, which hold no checksums. Pass --part-size "
                f"{source.size} or more, or leave out --check-sources."
            )
        )
    return path, fetched


class FetchJob(Job[FetchedPart]):
    """Bring a part's pieces to a folder on scratch; see `fetch_part`."""

    RESULT = FetchedPart

    part: Part
    folder: str
    options: ReadOptions
    check: bool = False

    def do(self, kept: Kept, report: Report) -> FetchedPart:
        """See `fetch_part`."""
        began = time.monotonic()
        paths, fetched = fetch_part(
            self.part,
            Path(self.folder),
            lambda done: report(JobProgress(fraction=done / max(self.part.size, 1))),
            options=self.options,
            check=self.check,
        )
        return FetchedPart(
            paths=tuple(map(str, paths)), fetched_bytes=fetched, seconds=time.monotonic() - began
        )
