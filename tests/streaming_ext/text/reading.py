"""Helpers that read source files in tests."""

import io
import tarfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import BadRow
from streaming_ext.text.formats import format_of
from streaming_ext.text.look import look_into
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.source_bytes import SourceFileBytes

TEXT = ReadOptions()
SKIP = ReadOptions(on_bad_document="skip")
Documents = list[tuple[int, str]]  # row and text of each document


def looked_at(path: Path) -> SourceFileBytes:
    """Return a file that is read where it is stored."""
    return SourceFileBytes(SourceFile(url=str(path), size=path.stat().st_size))


def look(*paths: Path, options: ReadOptions = TEXT) -> tuple[str, ...]:
    """Return what `look_into` reports about files."""
    sources = [SourceFile(url=str(path), size=path.stat().st_size) for path in paths]
    return look_into(sources, options)


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


class Found(NamedTuple):
    """The content of all batches of a file."""

    good: Documents
    bad: list[BadRow]
    rows: int
    nulls: int
    dropped: Counter[str]


def read(
    path: Path,
    options: ReadOptions = SKIP,
    batch_bytes: int = 2**20,
    span: tuple[int, int] | None = None,
) -> Found:
    """Read a file or a span of it, and check that each batch is as readers promise."""
    good: Documents = []
    bad: list[BadRow] = []
    dropped: Counter[str] = Counter()
    rows = nulls = 0
    last = 0.0
    reader = format_of(path.name, options)
    for batch in reader.read(path, options, span=span, batch_bytes=batch_bytes):
        assert batch.texts.type == pa.large_string()
        assert batch.texts.null_count == 0
        assert batch.rows.dtype == np.int64
        assert last <= batch.fraction <= 1.0
        good += zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
        bad += batch.bad
        dropped.update(batch.dropped)
        rows, nulls, last = rows + batch.num_rows, nulls + batch.nulls, batch.fraction
    assert len(good) + len(bad) + dropped.total() + nulls == rows
    return Found(good, bad, rows, nulls, dropped)


def documents(
    path: Path, data: bytes, options: ReadOptions = TEXT, batch_bytes: int = 2**20
) -> Documents:
    """Write bytes to a file and return its documents."""
    path.write_bytes(data)
    return read(path, options, batch_bytes).good


def faults(bad: Iterable[BadRow]) -> list[tuple[int, str, str]]:
    """Return row, location and reason of each bad row."""
    return [(one.row, one.location, one.reason) for one in bad]


def tar(files: Iterable[tuple[str, bytes]], kind: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar of files."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=kind) as file:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return whole.getvalue()
