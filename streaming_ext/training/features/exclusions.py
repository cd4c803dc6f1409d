"""Documents that training leaves out, named by a table of source files and rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import UsageError, one_line
from streaming_ext.format.schema import content_hash
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.source import DocumentRanges, Rows, TokenSource
from streaming_ext.training.features.documents import split_documents

_COLUMNS = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("from_byte", pa.uint64(), nullable=False),
        pa.field("row", pa.uint64(), nullable=False),
    ]
)


Excluded = dict[tuple[str, int], Ints]  # rows, by URL and the byte from which rows are counted


def read_excluded(path: str | Path) -> Excluded:
    """Read a Parquet file with the columns `source` and `row`, and maybe `from_byte`.

    Raises:
        UsageError: there is no such file, or it lacks a column, a source or a row.
    """
    try:
        table = pq.read_table(path)
        if "from_byte" not in table.column_names:
            table = table.append_column("from_byte", pa.array(np.zeros(len(table), np.int64)))
        table = table.select(_COLUMNS.names).cast(_COLUMNS)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise UsageError(
            f"exclude={str(path)!r} cannot be read: {one_line(error)}. Give a Parquet file "
            "with the columns `source` (text) and `row` (whole numbers from 0), as `shardmill "
            "trace --output` writes it."
        ) from error
    if not len(table):
        raise UsageError(f"exclude={str(path)!r} names no document. Leave exclude out.")
    files = table.group_by(["source", "from_byte"]).aggregate([("row", "list")])
    sources, from_bytes, rows = (column.to_pylist() for column in files.columns)
    keys = zip(sources, from_bytes, strict=True)
    return {key: np.unique(own) for key, own in zip(keys, rows, strict=True)}


def _find(excluded: Excluded, cache: ShardCache) -> DocumentRanges:
    """Find the excluded documents in a stream."""
    found = [np.empty((2, 0), np.int64)]
    for documents in split_documents(cache).parts_with({url for url, _ in excluded}):
        numbers, rows = documents.in_files
        chosen = np.zeros(len(rows), bool)
        for number, file in enumerate(documents.origins.files):
            if file in excluded:
                own = np.flatnonzero(numbers == number)
                chosen[own] = np.isin(rows[own], excluded[file])
        found.append(np.stack([documents.starts, documents.lengths])[:, chosen])
    return DocumentRanges(*np.concatenate(found, axis=1))


class Excluding(TokenSource):
    """The rows of another source, without rows that hold a token of an excluded document."""

    def __init__(self, source: TokenSource, path: str | Path) -> None:
        """Find the documents in the streams.

        Args:
            source: the source from which rows are left out.
            path: the table of the documents, see `read_excluded`.

        Raises:
            UsageError: the table cannot be read, a dataset does not list its documents, or no
                stream holds any document of the table.
            CorruptDatasetError: a record or table of documents is missing or damaged.
        """
        excluded = read_excluded(path)
        self._source, self.reader, self.length = source, source.reader, source.length
        # The fingerprint depends on neither the order nor the repeats of the table.
        lines = [
            f"{url}\t{from_byte}\t{','.join(map(str, rows.tolist()))}"
            for (url, from_byte), rows in sorted(excluded.items())
        ]
        self._fingerprint = content_hash("\n".join(lines).encode())
        self.excluded = [_find(excluded, cache) for cache in source.reader.caches]
        if not any(len(each.starts) for each in self.excluded):
            raise UsageError(
                f"exclude= names no document of this dataset and split; one of its sources is "
                f"{next(iter(excluded))[0]}. Was the table made from another one?"
            )
        self.bounds, self.chosen = source.bounds, source.chosen  # rows keep their numbers
        self.left_out = [source.sequences_with(*each) for each in enumerate(self.excluded)]

    def identity(self) -> dict[str, Any]:
        """Return the hash of the excluded documents, with the identity of the source."""
        return {"exclude": self._fingerprint} | self._source.identity()

    def find_ends(self, eot_id: int) -> None:
        """See the source."""
        self._source.find_ends(eot_id)

    def locate(self, streams: Ints, sequences: Ints, length: int) -> Rows:
        """See the source."""
        return self._source.locate(streams, sequences, length)

    def sequences_with(self, stream: int, documents: DocumentRanges) -> Ints:
        """See the source."""
        return self._source.sequences_with(stream, documents)
