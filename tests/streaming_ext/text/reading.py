"""How these tests read source files."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import BadDocument
from streaming_ext.text.formats import format_of
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.source_bytes import SourceFileBytes

TEXT = ReadOptions()
SKIP = ReadOptions(on_bad_document="skip")
Documents = list[tuple[int, str]]  # row and text of each


def looked_at(path: Path) -> SourceFileBytes:
    """A file as it is looked at where it is stored."""
    return SourceFileBytes(SourceFile(url=str(path), size=path.stat().st_size))


def read(
    path: Path, options: ReadOptions = SKIP, batch_bytes: int = 2**20
) -> tuple[Documents, list[BadDocument], int]:
    """Documents, bad ones, and rows in all; rows that hold no text are counted too."""
    good: Documents = []
    bad: list[BadDocument] = []
    rows = nulls = 0
    for batch in format_of(path.name, options).read(path, options, batch_bytes=batch_bytes):
        good += zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
        bad += batch.bad
        rows, nulls = rows + batch.num_rows, nulls + batch.nulls
    assert len(good) + len(bad) + nulls == rows
    return good, bad, rows


def documents(
    path: Path, data: bytes, options: ReadOptions = TEXT, batch_bytes: int = 2**20
) -> Documents:
    """The documents of a file of these bytes."""
    path.write_bytes(data)
    return read(path, options, batch_bytes)[0]


def faults(bad: Iterable[BadDocument]) -> list[tuple[int, str, str]]:
    """Row, location and reason of each."""
    return [(one.row, one.location, one.reason) for one in bad]


def tar(files: Iterable[tuple[str, bytes]], kind: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of files."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=kind) as file:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return whole.getvalue()
