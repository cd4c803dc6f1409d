"""The format of litData's `TokensLoader`: chunks of ids, in which a document is an item.

A chunk is `u32 N`, `u32[N + 1]` offsets of its items in the file, and the ids.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import Split
from streaming_ext.format.schema import content_hash
from tasks.core.derive.export_format import ExportFiles, ExportFormat, Made, PartPosition
from tasks.core.derive.formats.flat import cut_between_documents
from tasks.core.reading.documents import DocumentBlock

_DEFAULT_BYTES = 64 * 10**6
_OFFSET_BYTES = 4
_MOST_BYTES = 2**32 - 1  # an offset has 32 bits
_CODES = {"uint16": 5, "uint32": 6}  # in litData's list of types


class LitdataExport(ExportFormat):
    """Chunks of each part, and an index of all chunks of a split."""

    name = "litdata"
    takes = ("max_file_size",)

    @property
    def size(self) -> int:
        """The most bytes per chunk, unless a chunk holds a single document."""
        return self.options.max_file_size or _DEFAULT_BYTES

    @property
    def file_sizes(self) -> tuple[int, int]:
        """The most bytes that an offset can count."""
        return 0, _MOST_BYTES

    def write(
        self, position: PartPosition, documents: Iterable[DocumentBlock], out: ExportFiles
    ) -> None:
        """Write a part's chunks; each is built in memory, as its head lists all items."""
        room = self.size - 2 * _OFFSET_BYTES  # without the number of items and the last offset
        most, extra = max(room // self.dtype.itemsize, 1), _OFFSET_BYTES // self.dtype.itemsize
        for number, blocks in cut_between_documents(documents, most, extra=extra):
            held = [(ids.astype(self.dtype), lengths) for _, ids, lengths in blocks]
            lengths = np.concatenate([lengths for _, lengths in held])
            head = _OFFSET_BYTES * (1 + len(lengths) + 1)
            offsets = head + self.dtype.itemsize * np.cumsum([0, *lengths])
            if offsets[-1] > _MOST_BYTES:
                raise UsageError(
                    f"A document of {int(lengths.max()):,} tokens does not fit into a chunk of "
                    "litData, whose offsets have 32 bits. Leave it out with --max-tokens."
                )
            path = f"{position.split}/chunk-{position.part}-{number}.bin"
            with out.file(path) as sink:
                sink.write(np.concatenate([[len(lengths)], offsets]).astype("<u4"))
                for ids, _ in held:
                    sink.write(ids)
            out.made.append(
                Made(path=path, documents=len(lengths), tokens=int(lengths.sum()), size=sink.size)
            )

    def finish(self, made: Mapping[Split, Sequence[Made]], out: ExportFiles) -> None:
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
            config = {
                "chunk_bytes": self.size,
                "chunk_size": None,
                "compression": None,
                "data_format": [f"no_header_numpy:{_CODES[self.spec.dtype]}"],
                "data_spec": None,
                "encryption": None,
                "item_loader": "TokensLoader",
            }
            # Readers keep fetched files as long as this is the same, so it is a hash, not a time.
            updated = content_hash(json.dumps(chunks).encode())
            index = {"chunks": chunks, "config": config, "updated_at": updated}
            out.put(f"{split}/index.json", json.dumps(index, sort_keys=True).encode())
