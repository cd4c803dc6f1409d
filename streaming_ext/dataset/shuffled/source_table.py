"""`documents/sources.parquet` of a shuffled dataset: the sources that its documents name by number.

Nothing in it depends on how the files were cut: a file that was cut is one source. Where a node
keeps some pieces of a file alone, what follows each other of them is one.
"""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.dataset.layout import DOCUMENTS_FOLDER
from streaming_ext.dataset.record import SourceIdentity, Span
from streaming_ext.errors import CorruptDatasetError, one_line

SOURCES_PATH: Final = f"{DOCUMENTS_FOLDER}/sources.parquet"


def grown_sources_path(content: str) -> str:
    """Where the table of all sources of an extended dataset lies, by its content hash."""
    return f"{DOCUMENTS_FOLDER}/sources-{content}.parquet"


def is_grown_sources_path(path: str) -> bool:
    """Whether a path is that of such a table."""
    return re.fullmatch(grown_sources_path("[0-9a-f]{32}"), path) is not None


_SCHEMA = pa.schema(
    [
        ("url", pa.string()),
        ("size", pa.int64()),
        ("version", pa.string()),
        ("content", pa.string()),
        ("begin", pa.int64()),
        ("end", pa.int64()),
        ("rows", pa.int64()),
        ("documents", pa.int64()),
    ]
)
_MAX_THRIFT = 2**24


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One source of a shuffled dataset.

    Attributes:
        identity: of the file.
        span: what begins in these bytes of it; None for the whole file.
        rows: that were read.
        documents: that became documents.
    """

    identity: SourceIdentity
    span: Span | None
    rows: int
    documents: int


def table_bytes(sources: Iterable[Source]) -> bytes:
    """The table as a file."""
    rows = [
        {
            "url": source.identity.url,
            "size": source.identity.size,
            "version": source.identity.version,
            "content": source.identity.content,
            "begin": None if source.span is None else source.span[0],
            "end": None if source.span is None else source.span[1],
            "rows": source.rows,
            "documents": source.documents,
        }
        for source in sources
    ]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), file, compression="zstd")
    return file.getvalue()


def sources_of(data: bytes) -> Sequence[Source]:
    """The sources that a file lists, by number.

    Raises:
        CorruptDatasetError: it is damaged.
    """
    try:
        table = pq.read_table(
            pa.BufferReader(data),
            thrift_string_size_limit=_MAX_THRIFT,
            thrift_container_size_limit=_MAX_THRIFT,
        )
        if table.schema != _SCHEMA:
            raise CorruptDatasetError(f"expected the columns {', '.join(_SCHEMA.names)}")
        return [
            Source(
                identity=SourceIdentity(
                    url=row["url"],
                    size=row["size"],
                    version=row["version"],
                    content=row["content"],
                ),
                span=None if row["begin"] is None else (row["begin"], row["end"]),
                rows=row["rows"],
                documents=row["documents"],
            )
            for row in table.to_pylist()
        ]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDatasetError(f"no table of sources: {one_line(error)}") from error
