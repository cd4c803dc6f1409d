"""Hashes of a part's documents, sorted: what tokenizing leaves for the comparison over all parts.

A run of them is a file of blocks, each of an equal range of hashes, column by column: upper and
lower half of the hash, row in the part, and the key that the shuffle gives the document or, without
one, what `KnownTexts` notes of it. Documents of one hash stand in the order of the sources.
"""

from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from streaming_ext.dataset.shuffled.keys import Ints, Keys, ascending
from tasks.core.shuffle.run_record import Run, digests_path
from tasks.core.shuffle.run_writer import block_bits, block_starts

ENTRY_BYTES: Final = 32  # of a document
_MOST_DOCUMENTS: Final = 2**21  # of a run: what a worker holds and sorts


class DigestRuns:
    """The runs of one part, open for writing."""

    def __init__(self, folder: Path, part: int, *, most: int | None = None) -> None:
        """Begin with no run.

        Args:
            folder: on scratch.
            part: number of the part.
            most: documents of a run.
        """
        self._folder, self._part = folder, part
        self._most = most or _MOST_DOCUMENTS
        self._columns: list[tuple[Keys, Keys, Ints, Keys]] = []
        self._documents = 0
        self.runs: list[Run] = []

    def add(self, digests: Keys, rows: Ints, keys: Keys) -> None:
        """Append documents in the order of the sources.

        Args:
            digests: of their texts, (documents, 2).
            rows: their rows in the part, (documents,).
            keys: that the shuffle gives them, or what is noted of them, (documents,).
        """
        self._columns.append((digests[:, 0], digests[:, 1], rows, keys))
        self._documents += len(rows)
        if self._documents >= self._most:
            self._flush()

    def finish(self) -> tuple[Run, ...]:
        """Write the last run; returns all of them."""
        if self._documents:
            self._flush()
        return tuple(self.runs)

    def _flush(self) -> None:
        columns = [np.concatenate(pieces) for pieces in zip(*self._columns, strict=True)]
        order = ascending(columns[0])
        columns = [column[order] for column in columns]
        starts = block_starts(block_bits(ENTRY_BYTES * len(order)))
        # firsts: (blocks + 1,), the first document of each block
        firsts = np.append(np.searchsorted(columns[0], starts), len(order))
        path = digests_path(self._part, len(self.runs))
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        digests = np.zeros(len(starts), "<u8")
        with file.open("xb") as out:
            for block in range(len(starts)):
                begin, end = firsts[block : block + 2]
                data = b"".join(column[begin:end].astype("<u8").tobytes() for column in columns)
                out.write(data)
                digests[block] = xxhash.xxh3_64_intdigest(data)
        self.runs.append(Run.of(path, ENTRY_BYTES * firsts, np.diff(firsts), digests))
        self._columns, self._documents = [], 0
