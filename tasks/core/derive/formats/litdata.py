"""litData's chunks of ids, which `TokensLoader` cuts into blocks: a document is an item.

A chunk is `u32 N`, `u32[N + 1]` places of its items in the file, and their ids.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import Split
from streaming_ext.format.schema import content_hash
from streaming_ext.format.spec import DatasetSpec
from tasks.core.derive.export_format import ExportOptions, Extent, Extents, Made, Out, Place
from tasks.core.derive.formats.asked import require_only
from tasks.core.derive.whole import WholeFiles
from tasks.core.reading.documents import Documents, Ids

_USUAL_BYTES = 64 * 10**6
_PLACE_BYTES = 4
_MOST_BYTES = 2**32 - 1  # that a place tells
_CODES = {"uint16": 5, "uint32": 6}  # in litData's list of types


class LitdataFormat:
    """See `ExportFormat`."""

    tells_origins = False

    def __init__(self, spec: DatasetSpec, options: ExportOptions, totals: Extents) -> None:
        self._spec, self._options = spec, options
        self._dtype = np.dtype(spec.dtype).newbyteorder("<")
        self._size = options.max_file_size or _USUAL_BYTES

    def require_possible(self) -> None:
        """Refuse chunks whose items 32 bits do not find."""
        require_only("litdata", self._options, "max_file_size")
        if self._size > _MOST_BYTES:
            raise UsageError(
                f"--max-file-size {self._size:,} bytes: a chunk of litData tells places in 32 "
                f"bits, so it has at most {_MOST_BYTES:,}."
            )

    def files_of(self, own: Extent) -> int:
        """As many as documents fill, which only the documents tell."""
        return 0

    def shared(self) -> Mapping[str, int]:
        """None."""
        return {}

    def open(self, place: Place, out: Out) -> "_Writer":
        """Begin a part's first chunk."""
        return _Writer(place, out, self._dtype, self._size)

    def finish(self, made: Mapping[Split, Sequence[Made]], out: Out) -> None:
        """Write the index of each split."""
        for split, files in made.items():
            chunks = [
                {
                    "chunk_bytes": file.size,
                    "chunk_size": file.documents,
                    "dim": file.tokens,
                    "filename": file.path.rpartition("/")[2],
                }
                for file in files
            ]
            index = {
                "chunks": chunks,
                "config": {
                    "chunk_bytes": self._size,
                    "chunk_size": None,
                    "compression": None,
                    "data_format": [f"no_header_numpy:{_CODES[self._spec.dtype]}"],
                    "data_spec": None,
                    "encryption": None,
                    "item_loader": "TokensLoader",
                },
                # Readers keep what they fetched as long as this stays: no time, but the content.
                "updated_at": content_hash(json.dumps(chunks).encode()),
            }
            sink = out.file(f"{split}/index.json")
            sink.write(json.dumps(index, sort_keys=True).encode())
            sink.close()


class _Writer:
    """Holds a chunk in memory until it is full: its head tells of all its items."""

    def __init__(self, place: Place, out: Out, dtype: np.dtype[np.generic], size: int) -> None:
        self._place, self._out, self._dtype = place, out, dtype
        # The head tells their number, and where each item begins and the last one ends.
        room = size - 2 * _PLACE_BYTES
        self._files = WholeFiles(
            max(room // dtype.itemsize, 1), beside=_PLACE_BYTES // dtype.itemsize
        )
        self._room = np.empty(0, dtype)  # for the ids of a chunk
        self._held = 0
        self._lengths: list[Ints] = []
        self._made: list[Made] = []

    def add(self, documents: Documents) -> None:
        for begins, ids, lengths in self._files.cut(documents):
            if begins:
                self._end()
            self._hold(ids)
            self._lengths.append(lengths)

    def _hold(self, ids: Ids) -> None:
        end = self._held + len(ids)
        if len(self._room) < end:
            room = np.empty(max(end, self._files.most), self._dtype)
            room[: self._held] = self._room[: self._held]
            self._room = room
        self._room[self._held : end] = ids
        self._held = end

    def _end(self) -> None:
        if not self._held:
            return
        lengths = np.concatenate(self._lengths)
        head = _PLACE_BYTES * (1 + len(lengths) + 1)
        places = head + self._dtype.itemsize * np.cumsum([0, *lengths])
        if places[-1] > _MOST_BYTES:
            raise UsageError(
                f"A document of {int(lengths.max()):,} tokens does not fit into a chunk of "
                "litData, which tells places in 32 bits. Leave it out with --max-tokens."
            )
        path = f"{self._place.split}/chunk-{self._place.part}-{len(self._made)}.bin"
        sink = self._out.file(path)
        sink.write(np.concatenate([[len(lengths)], places]).astype("<u4"))
        sink.write(self._room[: self._held])
        sink.close()
        self._made.append(
            Made(
                path=path,
                documents=len(lengths),
                tokens=int(lengths.sum()),
                size=int(places[-1]),
            )
        )
        self._held, self._lengths = 0, []

    def finish(self) -> list[Made]:
        self._end()
        return self._made
