"""The order of a shuffled dataset: each document has a key, and documents are sorted by key.

The key is a keyed hash of the number of the document's source, in the order of the sorted sources,
and the document's position in it. It does not depend on parts, workers or hosts. Part b of P holds
the b-th of P equal ranges of keys, so the parts end to end are in the order of the keys:

    P = 4: part 1 holds the keys from 1/4 of 2^64 on, below 2/4

`documents/sources.parquet` lists the sources that the documents of a shuffled dataset name by
number. It does not depend on how files were cut: a file that was cut is one source. If a node
keeps only some spans of a file, consecutive spans are one source.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.base.arrays import Ints, ceil_div
from streaming_ext.format.layout import DOCUMENTS_FOLDER
from streaming_ext.format.parquet import parquet_bytes, read_batches
from streaming_ext.format.record import SourceIdentity, Span

Keys = npt.NDArray[np.uint64]

KEY_BITS: Final = 64
MAX_PART_BYTES: Final = 384 * 2**20  # of ids that a worker merges at a time
_LEAST_PARTS: Final = 64  # enough for many workers; fewer if they would not fill a shard
_SHIFT = np.uint64(33)
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


def document_keys(seed: int, sources: Ints, positions: Ints) -> Keys:
    """Return the key of each document.

    Args:
        seed: the seed of the permutation.
        sources: number of each document's source, int64 (documents,).
        positions: the position of each document in its source, int64 (documents,).
    """
    digest = xxhash.xxh3_128_intdigest(seed.to_bytes(8, "little"), seed=0x5348554646_4C45)
    low, high = np.uint64(digest & (2**KEY_BITS - 1)), np.uint64(digest >> KEY_BITS)
    of_source = mixed(sources.astype(np.uint64) + low)
    return mixed(mixed(positions.astype(np.uint64) ^ of_source) + high)


def mixed(values: Keys, shift: np.uint64 = _SHIFT) -> Keys:
    """Spread each bit of a value over all its bits, one to one and in place.

    This is the finalizer of MurmurHash3, which shifts by 33.
    """
    values ^= values >> shift
    values *= _FIRST
    values ^= values >> shift
    values *= _SECOND
    values ^= values >> shift
    return values


def ascending(keys: Keys) -> Ints:
    """Return the stable order of keys; several times as fast if no two keys are equal."""
    order = np.argsort(keys)
    sorted_keys = keys[order]
    if (sorted_keys[1:] == sorted_keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
    return order


def num_parts(id_bytes: int, shard_size: int) -> int:
    """Return the number of parts of a shuffled dataset, which depends on its size and shard size.

    Args:
        id_bytes: bytes of all ids, including end-of-text ids.
        shard_size: upper bound of a shard, in bytes.
    """
    each = min(MAX_PART_BYTES, max(shard_size, ceil_div(id_bytes, _LEAST_PARTS), 1))
    return max(1, ceil_div(id_bytes, each))


def key_range(part: int, parts: int) -> tuple[int, int]:
    """Return the range [start, end) of the keys of a part."""
    return (part << KEY_BITS) // parts, ((part + 1) << KEY_BITS) // parts


SOURCES_PATH: Final = f"{DOCUMENTS_FOLDER}/sources.parquet"


def grown_sources_path(content: str) -> str:
    """Return the path of the table of all sources of an extended dataset, by its content hash."""
    return f"{DOCUMENTS_FOLDER}/sources-{content}.parquet"


def is_grown_sources_path(path: str) -> bool:
    """Return whether a path is the path of such a table."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One source of a shuffled dataset.

    Attributes:
        identity: the identity of the file.
        span: the bytes of the file in which its documents begin; None for the whole file.
        rows: the number of rows that were read.
        documents: the number of rows that became documents.
    """

    identity: SourceIdentity
    span: Span | None
    rows: int
    documents: int


def table_bytes(sources: Iterable[Source]) -> bytes:
    """Return a table of sources as the content of a file."""
    rows = [
        {
            **each.identity.model_dump(),
            **dict(zip(("begin", "end"), each.span or (), strict=False)),
            "rows": each.rows,
            "documents": each.documents,
        }
        for each in sources
    ]
    return parquet_bytes(pa.Table.from_pylist(rows, _SCHEMA))


def sources_of(data: bytes) -> Sequence[Source]:
    """Return the sources that a file lists, by number.

    Raises:
        CorruptDatasetError: the file is damaged.
    """
    return [
        Source(
            identity=SourceIdentity(**{name: row[name] for name in SourceIdentity.model_fields}),
            span=None if row["begin"] is None else (row["begin"], row["end"]),
            rows=row["rows"],
            documents=row["documents"],
        )
        for batch in read_batches(data, _SCHEMA, nullable=["content", "begin", "end"])
        for row in batch.to_pylist()
    ]
