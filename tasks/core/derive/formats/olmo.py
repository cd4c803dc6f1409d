"""OLMo-core's and dolma's `.npy`, which has no header, with a list of its documents beside it."""

import gzip
import io
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from streaming_ext.format.layout import Split
from streaming_ext.format.spec import DatasetSpec
from tasks.core.derive.export_files import SinkFile
from tasks.core.derive.export_format import ExportOptions, Extent, Extents, Made, Out, Place
from tasks.core.derive.formats.asked import require_only
from tasks.core.reading.documents import Documents


class OlmoFormat:
    """See `ExportFormat`."""

    tells_origins = True

    def __init__(self, spec: DatasetSpec, options: ExportOptions, totals: Extents) -> None:
        self._options = options
        self._dtype = np.min_scalar_type(spec.tokenizer.vocab_size - 1).newbyteorder("<")

    def require_possible(self) -> None:
        """Refuse options."""
        require_only("olmo", self._options)

    def files_of(self, own: Extent) -> int:
        """One a part, with a list beside it."""
        return 1

    def shared(self) -> Mapping[str, int]:
        """None."""
        return {}

    def open(self, place: Place, out: Out) -> "_Writer":
        """Begin a part's files."""
        return _Writer(place, self._dtype, out)

    def finish(self, made: Mapping[Split, Sequence[Made]], out: Out) -> None:
        """Nothing is of no part."""


class _Writer:
    def __init__(self, place: Place, dtype: np.dtype[np.generic], out: Out) -> None:
        self._place, self._dtype = place, dtype
        self._path = f"{place.split}/part-{place.part:05}.npy"
        self._ids = out.file(self._path)
        self._rows = out.file(f"{place.split}/part-{place.part:05}.csv.gz")
        self._zipped = gzip.GzipFile(
            "", "wb", compresslevel=1, fileobj=SinkFile(self._rows), mtime=0
        )
        self._tokens = self._documents = 0

    def add(self, documents: Documents) -> None:
        self._ids.write(np.ascontiguousarray(documents.stream, self._dtype))
        self._zipped.write(self._listed(documents))
        self._tokens += len(documents.stream)
        self._documents += len(documents.ends)

    def _listed(self, documents: Documents) -> bytes:
        """The lines `start,end,id,src,loc`: the number in the part, the source file, its row."""
        assert documents.origins is not None  # noqa: S101  (it is asked for)
        places = documents.origins.places
        # Where nobody counted what lies before a piece, its rows count from its first byte on.
        files = pa.array(
            [f"{url}#byte={begin}" if begin else url for url, begin in places.files()], pa.string()
        )
        numbers, rows = places.numbered(documents.origins.rows, documents.origins.sources)
        ends = documents.ends + self._tokens
        own = self._documents + np.arange(len(ends))
        prefix = f"{self._place.split}-{self._place.part:05}-"
        names = pc.binary_join_element_wise(prefix, pa.array(own).cast(pa.string()), "")
        table = pa.table(
            [ends - documents.lengths, ends, names, files.take(pa.array(numbers)), rows],
            names=["start", "end", "id", "src", "loc"],
        )
        lines = io.BytesIO()
        csv.write_csv(table, lines, csv.WriteOptions(include_header=False))
        return lines.getvalue()

    def finish(self) -> list[Made]:
        self._ids.close()
        self._zipped.close()
        self._rows.close()
        return [
            Made(
                path=self._path,
                documents=self._documents,
                tokens=self._tokens,
                size=self._tokens * self._dtype.itemsize,
            )
        ]
