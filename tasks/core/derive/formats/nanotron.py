"""nanotron's and datatrove's `.ds`: bare ids, with the ends of documents beside them."""

from collections.abc import Mapping, Sequence

import numpy as np

from streaming_ext.format.layout import Split
from streaming_ext.format.spec import DatasetSpec
from tasks.core.derive.export_format import ExportOptions, Extent, Extents, Made, Out, Place
from tasks.core.derive.formats.asked import require_only
from tasks.core.reading.documents import Documents


class NanotronFormat:
    """See `ExportFormat`."""

    tells_origins = False

    def __init__(self, spec: DatasetSpec, options: ExportOptions, totals: Extents) -> None:
        self._spec, self._options = spec, options

    def require_possible(self) -> None:
        """Refuse options."""
        require_only("nanotron", self._options)

    def files_of(self, own: Extent) -> int:
        """One a part, with two beside it."""
        return 1

    def shared(self) -> Mapping[str, int]:
        """None."""
        return {}

    def open(self, place: Place, out: Out) -> "_Writer":
        """Begin a part's files."""
        return _Writer(f"{place.split}/{place.part:05}.ds", self._spec, out)

    def finish(self, made: Mapping[Split, Sequence[Made]], out: Out) -> None:
        """Nothing is of no part."""


class _Writer:
    def __init__(self, path: str, spec: DatasetSpec, out: Out) -> None:
        self._path, self._spec, self._out = path, spec, out
        self._dtype = np.dtype(spec.dtype).newbyteorder("<")
        self._ids = out.file(path)
        self._ends = out.file(f"{path}.index")
        self._documents = self._tokens = 0

    def add(self, documents: Documents) -> None:
        self._ids.write(np.ascontiguousarray(documents.stream, self._dtype))
        self._ends.write((documents.ends + self._tokens).astype("<u8"))
        self._tokens += len(documents.stream)
        self._documents += len(documents.ends)

    def finish(self) -> list[Made]:
        self._ids.close()
        self._ends.close()
        size = self._dtype.itemsize
        lines = (f"{self._spec.tokenizer.name}|{size}", self._tokens, _in_words(self._tokens))
        words = self._out.file(f"{self._path}.metadata")
        words.write("\n".join(map(str, lines)).encode())
        words.close()
        return [
            Made(
                path=self._path,
                documents=self._documents,
                tokens=self._tokens,
                size=self._tokens * size,
            )
        ]


def _in_words(tokens: int) -> str:
    """A number for people, as datatrove writes it: three figures, with the unit T for tokens."""
    power = max((len(str(tokens)) - 1) // 3, 0) if tokens else 0
    prefix = ("", "k", "M", "G", "T", "P")[power]
    return f"{tokens / 1000**power:.3g} {prefix}T"
