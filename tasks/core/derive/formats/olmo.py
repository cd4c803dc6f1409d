"""OLMo-core's and dolma's `.npy`, which has no header, next to a list of its documents."""

import gzip
import io
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from tasks.core.derive.export_files import HashedOut
from tasks.core.derive.export_format import ExportFormat, PartPosition
from tasks.core.derive.export_records import Made
from tasks.core.reading.documents import Documents


class OlmoFormat(ExportFormat):
    """A file of ids per part, with a list of documents."""

    name = "olmo"
    needs_origins = True

    def write(
        self, position: PartPosition, documents: Iterable[Documents], out: HashedOut
    ) -> Sequence[Made]:
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
        return ()


def _listed(documents: Documents, tokens: int, prefix: str, number: int) -> bytes:
    """The lines `start,end,id,src,loc` of some documents: `loc` is the row in the source file.

    Args:
        documents: with their origins.
        tokens: of the part before them.
        prefix: of an `id`, which ends in the number of the document in the part.
        number: of the first document.
    """
    assert documents.origins is not None  # noqa: S101  (`needs_origins`)
    source_rows = documents.origins.source_rows
    # Rows of a span count from its first byte on if nobody counted the rows before it.
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
