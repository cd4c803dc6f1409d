"""Parquet files of `input_ids`, a row per document, as Hugging Face `datasets` reads them."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.derive.export_files import HashedOut
from tasks.core.derive.export_format import ExportFormat, PartPosition
from tasks.core.derive.export_records import Made
from tasks.core.reading.documents import Documents

_GROUP_TOKENS = 2**24  # of a row group: readers hold one in memory
_SCHEMA = pa.schema({"input_ids": pa.list_(pa.int32())})


class ParquetFormat(ExportFormat):
    """A file per part."""

    name = "parquet"

    def write(
        self, position: PartPosition, documents: Iterable[Documents], out: HashedOut
    ) -> Sequence[Made]:
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
                write_page_index=True,  # else a list may lie in two pages, which some refuse
            ) as file,
        ):
            for block in documents:
                for table in _groups(block):
                    file.write_table(table, row_group_size=len(table))
        return ()


def _groups(documents: Documents) -> Iterable[pa.Table]:
    """Some documents as tables, each for a row group."""
    # offsets: (documents + 1,), where each begins, and the end of the last one
    offsets = np.concatenate([[0], documents.ends])
    cuts = np.searchsorted(offsets, np.arange(0, offsets[-1], _GROUP_TOKENS))
    bounds = np.unique([*cuts.tolist(), len(documents.ends)])
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        begin, end = int(offsets[first]), int(offsets[last])
        ids = pa.array(documents.stream[begin:end].astype(np.int32))
        own = pa.array((offsets[first : last + 1] - begin).astype(np.int32))
        yield pa.table([pa.ListArray.from_arrays(own, ids)], _SCHEMA)
