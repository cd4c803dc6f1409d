"""Parquet files of `input_ids`, a row a document, as Hugging Face `datasets` reads them."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.format.layout import Split
from streaming_ext.format.spec import DatasetSpec
from tasks.core.derive.export_files import SinkFile
from tasks.core.derive.export_format import ExportOptions, Extent, Extents, Made, Out, Place
from tasks.core.derive.formats.asked import require_only
from tasks.core.reading.documents import Documents

_GROUP_TOKENS = 2**24  # of a row group: readers hold one in memory
_SCHEMA = pa.schema({"input_ids": pa.list_(pa.int32())})


class ParquetFormat:
    """See `ExportFormat`."""

    tells_origins = False

    def __init__(self, spec: DatasetSpec, options: ExportOptions, totals: Extents) -> None:
        self._options = options

    def require_possible(self) -> None:
        """Refuse options."""
        require_only("parquet", self._options)

    def files_of(self, own: Extent) -> int:
        """One a part."""
        return 1

    def shared(self) -> Mapping[str, int]:
        """None."""
        return {}

    def open(self, place: Place, out: Out) -> "_Writer":
        """Begin a part's file."""
        return _Writer(f"{place.split}/{place.part:05}.parquet", out)

    def finish(self, made: Mapping[Split, Sequence[Made]], out: Out) -> None:
        """Nothing is of no part."""


class _Writer:
    def __init__(self, path: str, out: Out) -> None:
        self._path, self._sink = path, out.file(path)
        self._file = pq.ParquetWriter(
            SinkFile(self._sink),
            _SCHEMA,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
            store_schema=False,
            write_page_index=True,  # then no list lies in two pages, which some readers refuse
        )
        self._documents = self._tokens = 0

    def add(self, documents: Documents) -> None:
        # offsets: (documents + 1,), where each begins, and the last one's end
        offsets = np.concatenate([[0], documents.ends])
        cuts = np.searchsorted(offsets, np.arange(0, offsets[-1], _GROUP_TOKENS))
        bounds = np.unique([*cuts.tolist(), len(documents.ends)])
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            begin, end = int(offsets[first]), int(offsets[last])
            ids = pa.array(documents.stream[begin:end].astype(np.int32))
            places = pa.array((offsets[first : last + 1] - begin).astype(np.int32))
            lists = pa.ListArray.from_arrays(places, ids)
            self._file.write_table(pa.table([lists], _SCHEMA), row_group_size=len(lists))
        self._documents += len(documents.ends)
        self._tokens += int(documents.ends[-1])

    def finish(self) -> list[Made]:
        self._file.close()
        self._sink.close()
        return [
            Made(
                path=self._path,
                documents=self._documents,
                tokens=self._tokens,
                size=self._sink.size,
            )
        ]
