"""nanoGPT: `train.bin` and `val.bin` of bare uint16 ids, end of text behind each document."""

from collections.abc import Mapping, Sequence

import numpy as np

from streaming_ext.format.layout import Split
from streaming_ext.format.spec import DatasetSpec
from tasks.core.derive.export_format import ExportOptions, Extent, Extents, Made, Out, Place
from tasks.core.derive.formats.asked import require_only, require_uint16
from tasks.core.derive.formats.flat import FlatFiles, FlatWriter, sizes_of
from tasks.core.reading.documents import Documents

_NAMES: dict[Split, str] = {"train": "train.bin", "holdout": "val.bin"}


class NanogptFormat:
    """See `ExportFormat`."""

    tells_origins = False

    def __init__(self, spec: DatasetSpec, options: ExportOptions, totals: Extents) -> None:
        self._spec, self._options = spec, options
        self._files = {split: _files(split, total.tokens) for split, total in totals.items()}

    def require_possible(self) -> None:
        """Refuse ids beyond 16 bits."""
        require_uint16("nanogpt", self._spec)
        require_only("nanogpt", self._options)

    def files_of(self, own: Extent) -> int:
        """None of a part's own."""
        return 0

    def shared(self) -> Mapping[str, int]:
        """One file a split."""
        return sizes_of(self._files.values())

    def open(self, place: Place, out: Out) -> "_Writer":
        """Begin a part's range of the file."""
        return _Writer(FlatWriter(out, self._files[place.split], place.before.tokens))

    def finish(self, made: Mapping[Split, Sequence[Made]], out: Out) -> None:
        """Nothing is of no part."""


class _Writer:
    def __init__(self, flat: FlatWriter) -> None:
        self._flat = flat

    def add(self, documents: Documents) -> None:
        self._flat.write(documents.stream)

    def finish(self) -> list[Made]:
        self._flat.close()
        return []


def _files(split: Split, tokens: int) -> FlatFiles:
    return FlatFiles(
        path=lambda number: _NAMES[split], dtype=np.dtype("<u2"), total=tokens, each=max(tokens, 1)
    )
