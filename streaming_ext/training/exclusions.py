"""Documents that training leaves out, named by a table of source files and rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streaming_ext.base.arrays import Ints, ranges
from streaming_ext.base.errors import UsageError, one_line
from streaming_ext.format.schema import content_hash
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.documents import Documents, parts_with


@dataclass(frozen=True)
class Exclusions:
    """Which documents are left out.

    Attributes:
        rows: of each source file, sorted, by its URL and the byte that rows are counted from.
    """

    rows: dict[tuple[str, int], Ints]

    @classmethod
    def read(cls, path: str | Path) -> "Exclusions":
        """Read a Parquet file with the columns `source` and `row`, and maybe `from_byte`.

        Raises:
            UsageError: there is no such file, or it lacks a column, a source or a row.
        """
        try:
            table = pq.read_table(path)
            if "from_byte" not in table.column_names:
                table = table.append_column("from_byte", pa.array(np.zeros(len(table), np.int64)))
            _require_valid(path, table)
            types = {"source": pa.string(), "from_byte": pa.int64(), "row": pa.int64()}
            table = table.select(list(types)).cast(pa.schema(list(types.items())))
        except (OSError, KeyError, pa.ArrowException) as error:
            raise UsageError(
                f"exclude={str(path)!r} cannot be read: {one_line(error)}. Give a Parquet file "
                "with the columns `source` (text) and `row` (whole numbers), as `shardmill trace "
                "--output` writes it."
            ) from error
        if not len(table):
            raise UsageError(f"exclude={str(path)!r} names no document. Leave exclude out.")
        files = table.group_by(["source", "from_byte"]).aggregate([("row", "list")])
        sources, from_bytes, rows = (column.to_pylist() for column in files.columns)
        keys = zip(sources, from_bytes, strict=True)
        return cls({key: np.unique(own) for key, own in zip(keys, rows, strict=True)})

    @cached_property
    def fingerprint(self) -> str:
        """Content hash of what is left out, in whatever order and however often it was named."""
        lines = [
            f"{url}\t{from_byte}\t{','.join(map(str, rows.tolist()))}"
            for (url, from_byte), rows in sorted(self.rows.items())
        ]
        return content_hash("\n".join(lines).encode())

    def documents_in(self, cache: ShardCache) -> Documents:
        """The documents of a stream that are left out.

        Raises:
            UsageError: the dataset does not list its documents.
            CorruptDatasetError: a record or table of documents is missing or damaged.
        """
        found = [np.empty((2, 0), np.int64)]
        for documents in parts_with(cache, {url for url, _ in self.rows}):
            numbers, rows = documents.in_files
            chosen = np.zeros(len(rows), bool)
            for number, file in enumerate(documents.files):
                if file in self.rows:
                    own = np.flatnonzero(numbers == number)
                    chosen[own] = np.isin(rows[own], self.rows[file])
            found.append(np.stack([documents.starts, documents.lengths])[:, chosen])
        return Documents(*np.concatenate(found, axis=1))


def _require_valid(path: str | Path, table: pa.Table) -> None:
    """Refuse documents without a source, or without a row in it.

    Raises:
        UsageError: naming the first of them.
    """
    for name in {"source", "row", "from_byte"} & set(table.column_names):
        wrong = table[name].is_null()
        if name != "source":
            wrong = pc.or_kleene(wrong, pc.less(table[name].cast(pa.int64()), 0))
        if (at := pc.index(wrong, True).as_py()) >= 0:
            raise UsageError(
                f"exclude={str(path)!r}: row {at} of the table has the {name} "
                f"{table[name][at].as_py()!r}. Each document needs a source, as a text, and a "
                "row in it, a whole number from 0."
            )


def excluded_documents(
    exclusions: Exclusions | None, caches: Sequence[ShardCache]
) -> list[Documents] | None:
    """The documents that each stream leaves out, None if nothing is to be left out.

    Raises:
        UsageError: no stream holds any of them.
    """
    if exclusions is None:
        return None
    found = [exclusions.documents_in(cache) for cache in caches]
    if not any(len(each.starts) for each in found):
        url = next(iter(exclusions.rows))[0]
        raise UsageError(
            f"exclude= names no document of this dataset and split; one of its sources is {url}. "
            "Was the table made from another one?"
        )
    return found


def sequences_left_out(
    documents: Sequence[Documents] | None, bounds: Sequence[Ints], length: int
) -> list[Ints]:
    """The sequences of each stream that hold a token of some documents, sorted.

    Args:
        documents: that each stream leaves out; None for none.
        bounds: see `PassOrder`, one a stream.
        length: tokens a sequence.
    """
    if documents is None:
        return [np.empty(0, np.int64) for _ in bounds]
    found = []
    for (starts, lengths), own in zip(documents, bounds, strict=True):
        first = starts // length
        counts = (starts + lengths - 1) // length - first + 1
        sequences = np.unique(ranges(first, counts))
        found.append(sequences[sequences < own[-1]])
    return found
