"""Formats in which each part has its own files: nanotron's `.ds`, OLMo's `.npy`, and Parquet."""

import gzip
import io
import zlib
from collections.abc import Iterable
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from tasks.core.derive.export_format import ExportFiles, ExportFormat, PartPosition
from tasks.core.reading.documents import DocumentBlock

_GROUP_TOKENS = 2**24  # per row group: readers hold one in memory
_SCHEMA = pa.schema({"input_ids": pa.list_(pa.int32())})


class NanotronExport(ExportFormat):
    """Bare ids for nanotron and datatrove, with files of document ends and metadata."""

    name = "nanotron"

    def write(
        self, position: PartPosition, documents: Iterable[DocumentBlock], out: ExportFiles
    ) -> None:
        """Write a part's files."""
        path = f"{position.split}/{position.part:05}.ds"
        tokens = 0
        with out.file(path) as ids, out.file(f"{path}.index") as ends:
            for block in documents:
                ids.write(np.ascontiguousarray(block.stream, self.dtype))
                ends.write((block.ends + tokens).astype("<u8"))
                tokens += len(block.stream)
        lines = f"{self.spec.tokenizer.name}|{self.dtype.itemsize}", tokens, _in_words(tokens)
        out.put(f"{path}.metadata", "\n".join(map(str, lines)).encode())


def _in_words(tokens: int) -> str:
    """Format a number like datatrove: three figures, and T for tokens."""
    power = (len(str(tokens)) - 1) // 3
    prefix = ("", "k", "M", "G", "T", "P")[power]
    return f"{tokens / 1000**power:.3g} {prefix}T"


class OlmoExport(ExportFormat):
    """Ids without a header for OLMo-core and dolma, with lists of documents."""

    name = "olmo"
    made_with: ClassVar = {"pyarrow": pa.__version__, "zlib": zlib.ZLIB_RUNTIME_VERSION}
    needs_origins = True

    def write(
        self, position: PartPosition, documents: Iterable[DocumentBlock], out: ExportFiles
    ) -> None:
        """Write a part's files."""
        dtype = np.min_scalar_type(self.spec.tokenizer.vocab_size - 1).newbyteorder("<")
        prefix, tokens, number = f"{position.split}-{position.part:05}-", 0, 0
        path = f"{position.split}/part-{position.part:05}"
        with (
            out.file(f"{path}.npy") as ids,
            out.file(f"{path}.csv.gz") as packed,
            gzip.GzipFile("", "wb", compresslevel=1, fileobj=packed, mtime=0) as rows,
        ):
            for block in documents:
                ids.write(np.ascontiguousarray(block.stream, dtype))
                rows.write(_listed(block, tokens, prefix, number))
                tokens, number = tokens + len(block.stream), number + len(block.ends)


def _listed(documents: DocumentBlock, tokens: int, prefix: str, number: int) -> bytes:
    """Return a line `start,end,id,src,loc` per document; `loc` is the row in the source file.

    Args:
        documents: the documents, with their origins.
        tokens: the number of earlier tokens of the part.
        prefix: the prefix of each `id`, to which the number of the document in the part is added.
        number: the number of the first document.
    """
    assert documents.origins is not None  # noqa: S101  (`needs_origins`)
    source_rows = documents.origins.source_rows
    # Rows are counted from a span's first byte on if the rows before it are not known.
    files = pa.array(
        [f"{url}#byte={begin}" if begin else url for url, begin in source_rows.files], pa.string()
    )
    sources, rows = source_rows.numbered(documents.origins.rows, documents.origins.sources)
    ends = documents.ends + tokens
    numbers = pa.array(number + np.arange(len(ends))).cast(pa.string())
    ids = pc.binary_join_element_wise(prefix, numbers, "")
    table = pa.table(
        [ends - documents.lengths, ends, ids, files.take(pa.array(sources)), rows],
        names=["start", "end", "id", "src", "loc"],
    )
    lines = io.BytesIO()
    csv.write_csv(table, lines, csv.WriteOptions(include_header=False))
    return lines.getvalue()


class ParquetExport(ExportFormat):
    """Parquet files for Hugging Face `datasets`, with a row of `input_ids` per document."""

    name = "parquet"
    made_with: ClassVar = {"pyarrow": pa.__version__}

    def write(
        self, position: PartPosition, documents: Iterable[DocumentBlock], out: ExportFiles
    ) -> None:
        """Write a part's file."""
        with (
            out.file(f"{position.split}/{position.part:05}.parquet") as sink,
            pq.ParquetWriter(
                sink,
                _SCHEMA,
                compression="none",
                use_dictionary=False,
                write_statistics=False,
                store_schema=False,
                write_page_index=True,  # else a list may span two pages, which some readers refuse
            ) as file,
        ):
            for block in documents:
                for table in _groups(block):
                    file.write_table(table, row_group_size=len(table))


def _groups(documents: DocumentBlock) -> Iterable[pa.Table]:
    """Yield documents as tables, one per row group."""
    # offsets: (documents + 1,), the start of each document, and the end of the last
    offsets = np.concatenate([[0], documents.ends])
    cuts = np.searchsorted(offsets, np.arange(0, offsets[-1], _GROUP_TOKENS))
    for first, last in pairwise(np.unique([*cuts, len(documents.ends)]).tolist()):
        begin, end = offsets[first], offsets[last]
        ids = pa.array(documents.stream[begin:end].astype(np.int32))
        own = pa.array((offsets[first : last + 1] - begin).astype(np.int32))
        yield pa.table([pa.ListArray.from_arrays(own, ids)], _SCHEMA)
