"""Where the documents of a part go once they are tokenized: packed, or sorted for a shuffle."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.layout import SPLITS, Split
from streaming_ext.dataset.record import SplitPart
from streaming_ext.dataset.shuffled.keys import Ints
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.text.documents.source_format import DocumentBatch
from streaming_ext.text.documents.text_array import text_buffers
from tasks.core.outputs.contract import Memories
from tasks.core.outputs.part_files import PartFiles
from tasks.core.reading.part_documents import PartDocuments
from tasks.core.shuffle.run_record import Run
from tasks.core.shuffle.run_writer import RunWriter


@dataclass(frozen=True, slots=True)
class Tokens:
    """Some tokenized documents, in the order of the sources.

    Attributes:
        batch: that they are of.
        kept: which of its texts they are, (texts,).
        stream: their ids, an end-of-text id behind each, (tokens,).
        lengths: their tokens, without end-of-text ids, (documents,).
        in_holdout: their split, (documents,).
    """

    batch: DocumentBatch
    kept: npt.NDArray[np.bool_]
    stream: npt.NDArray[Any]
    lengths: Ints
    in_holdout: npt.NDArray[np.bool_]


class Sink(Protocol):
    """Takes the documents of one part."""

    def add(self, tokens: Tokens) -> None:
        """Append documents."""
        ...

    def finish(self) -> dict[Split, SplitPart]:
        """Write what is left, and say what each split holds."""
        ...


class Packed:
    """Documents packed into the files of a part."""

    def __init__(self, folder: Path, part: int, spec: DatasetSpec, memories: Memories) -> None:
        self._files = PartFiles(folder, part, spec, memories)

    def add(self, tokens: Tokens) -> None:
        """Append documents."""
        rows = tokens.batch.rows[tokens.kept]
        self._files.add(tokens.stream, rows, tokens.lengths, tokens.in_holdout)

    def finish(self) -> dict[Split, SplitPart]:
        """Write what is left, and say what each split holds."""
        return self._files.finish()


class Sorted:
    """Documents sorted by their keys.

    Attributes:
        runs: that were written.
        documents: of each piece of the part.
    """

    def __init__(
        self,
        folder: Path,
        part: int,
        spec: DatasetSpec,
        *,
        first_source: int,
        documents: PartDocuments,
    ) -> None:
        """Begin with no run.

        Args:
            folder: an empty one on scratch.
            part: number of the part.
            spec: with the shuffle.
            first_source: number of the source of its first piece; those of further pieces follow.
            documents: of the part, as they are read.
        """
        self._spec, self._first_source, self._documents = spec, first_source, documents
        self._writer = RunWriter(folder, part, spec)
        self._of_pieces = np.zeros(documents.num_pieces, np.int64)
        self.runs: tuple[Run, ...] = ()

    @property
    def documents(self) -> tuple[int, ...]:
        """Documents of each piece."""
        return tuple(self._of_pieces.tolist())

    def add(self, tokens: Tokens) -> None:
        """Append documents."""
        batch, kept = tokens.batch, tokens.kept
        rows = batch.rows[kept]
        pieces = self._documents.pieces_of(rows)
        self._of_pieces += np.bincount(pieces, minlength=len(self._of_pieces))
        self._writer.add(
            tokens.stream,
            sources=pieces + self._first_source,
            places=batch.named_by[kept],
            rows=rows,
            lengths=tokens.lengths,
            sizes=np.diff(text_buffers(batch.texts)[1])[kept],
            in_holdout=tokens.in_holdout,
        )

    def finish(self) -> dict[Split, SplitPart]:
        """Write the last run, and say what each split holds; nothing is packed."""
        self.runs = tuple(self._writer.finish())
        counts = {SPLITS[int(held_out)]: each for held_out, each in self._writer.counts.items()}
        return {
            split: SplitPart(
                documents=counts[split][0], tokens=counts[split][1], padding=0, shards=()
            )
            for split in self._spec.splits
        }
