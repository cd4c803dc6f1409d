"""Reading `documents/NNNNN.parquet`: which row of the source each document is, and how long."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streaming_ext.dataset.layout import SPLITS, Split
from streaming_ext.errors import CorruptDatasetError, one_line
from streaming_ext.text.documents.kept_values import MAX_VALUE_BYTES
from streaming_ext.text.documents.kept_values import TYPES as KEPT_TYPES

DOCUMENTS_SCHEMA = pa.schema([("row", pa.int64()), ("split", pa.string()), ("tokens", pa.uint32())])
# Of a shuffled dataset: the number of each document's source, what names it there however the file
# is cut, left out where that is its row, and its row there.
SHUFFLED_SCHEMA = pa.schema(
    [("source", pa.int32()), ("place", pa.int64()), *DOCUMENTS_SCHEMA],
)
KEPT_PREFIX = "column."  # before the names of kept columns, which may be called as one of ours
_BATCH_ROWS = 2**16
_MAX_THRIFT = 2**20  # strings and lists of a footer: a part has three columns, few row groups


@dataclass(frozen=True, slots=True)
class DocumentRows:
    """Some consecutive documents of a part, in the order of the source, or of their keys.

    Attributes:
        rows: row in the source file, int64 (n,).
        splits: index into `SPLITS`, int8 (n,).
        tokens: ids of each, its end-of-text id left out, int64 (n,).
        sources: number of the source, int64 (n,); None where the dataset is not shuffled.
        places: what names each in its source, int64 (n,); None where it is not shuffled.
        values: of each kept column, by its name: (n,) each.
    """

    rows: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int8]
    tokens: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64] | None = None
    places: npt.NDArray[np.int64] | None = None
    values: Mapping[str, pa.Array] = field(default_factory=dict)

    def of(self, split: Split) -> npt.NDArray[np.bool_]:
        """Which of them belong to a split."""
        mask: npt.NDArray[np.bool_] = self.splits == SPLITS.index(split)
        return mask


def documents_limit(num_documents: int, kept_columns: int = 0) -> int:
    """What the provenance of so many documents takes at most, in bytes.

    Args:
        num_documents: that it lists.
        kept_columns: whose values it holds.
    """
    each = 56 + kept_columns * (MAX_VALUE_BYTES + 16)
    return 2**20 * (1 + kept_columns) + each * min(num_documents, 2**27)


def count_documents(data: bytes) -> int:
    """How many documents a file lists, as its footer says.

    Raises:
        CorruptDatasetError: it is no such file.
    """
    with _open(data) as file:
        return int(file.metadata.num_rows)


def read_provenance(data: bytes) -> Iterator[DocumentRows]:
    """Read a file in bounded batches.

    Raises:
        CorruptDatasetError: it is damaged, or holds what no such file holds.
    """
    first = 0
    with _open(data) as file:
        batches = file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                raise CorruptDatasetError(
                    f"damaged from document {first} on: {one_line(error)}"
                ) from error
            if batch is None:
                return
            yield _convert(batch, first)
            first += len(batch)


def lengths_of(data: bytes, split: Split) -> Iterator[npt.NDArray[np.int64]]:
    """The lengths of a split's documents in order, in bounded batches."""
    for documents in read_provenance(data):
        yield documents.tokens[documents.of(split)]


def _open(data: bytes) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(
            pa.BufferReader(data),
            read_dictionary=["split"],  # however long the name, it stands in memory once
            thrift_string_size_limit=_MAX_THRIFT,
            thrift_container_size_limit=_MAX_THRIFT,
        )
        schema = file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise CorruptDatasetError(f"not a whole Parquet file: {one_line(error)}") from error
    found = [
        (field.name, field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
        for field in schema
    ]
    schemas = (DOCUMENTS_SCHEMA, SHUFFLED_SCHEMA)
    allowed = [[(field.name, field.type) for field in schema] for schema in schemas]
    kept = [name.startswith(KEPT_PREFIX) and kind in KEPT_TYPES for name, kind in found]
    own = found[: kept.index(True)] if True in kept else found
    if own not in allowed or not all(kept[len(own) :]):
        expected = allowed[0]
        shown = [", ".join(f"{name}: {kind}" for name, kind in them) for them in (expected, found)]
        raise CorruptDatasetError(f"expected the columns {shown[0]}; it has {shown[1]}")
    return file


def _convert(batch: pa.RecordBatch, first: int) -> DocumentRows:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count and name != "place" and not name.startswith(KEPT_PREFIX):
            raise CorruptDatasetError(f"{column.null_count} nulls in {name} from row {first} on")
    split = batch.column("split")
    if len(split.dictionary) > len(SPLITS):
        raise CorruptDatasetError(
            f"{len(split.dictionary)} names of splits, expected {', '.join(SPLITS)}"
        )
    names = [name[:40] for name in split.dictionary.to_pylist()]
    if unknown := [name for name in names if name not in SPLITS]:
        raise CorruptDatasetError(f"the split {unknown[0]!r}, expected {', '.join(SPLITS)}")
    codes = np.array([SPLITS.index(name) for name in names], np.int8)
    rows = np.asarray(batch.column("row"))
    sources = places = None
    if "source" in batch.schema.names:
        sources = np.asarray(batch.column("source")).astype(np.int64)
        places = np.asarray(pc.coalesce(batch.column("place"), batch.column("row")))
    return DocumentRows(
        rows,
        codes[np.asarray(split.indices)],
        np.asarray(batch.column("tokens")).astype(np.int64),
        sources,
        places,
        {
            name.removeprefix(KEPT_PREFIX): column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if name.startswith(KEPT_PREFIX)
        },
    )
