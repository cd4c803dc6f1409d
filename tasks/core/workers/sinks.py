"""Where the documents of a part go once they are tokenized: packed, or sorted for a shuffle."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.dataset.layout import SPLITS, Split
from streaming_ext.dataset.record import SplitPart
from streaming_ext.dataset.shuffled.keys import Ints, Keys, document_keys
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.text.documents.source_format import DocumentBatch
from streaming_ext.text.documents.text_array import text_buffers
from tasks.core.deduplicate.digest_runs import DigestRuns
from tasks.core.deduplicate.kept_order import KeptOrderRun
from tasks.core.memories import Memories
from tasks.core.outputs.part_files import PartFiles
from tasks.core.reading.part_documents import PartDocuments
from tasks.core.shuffle.merged_run import merged
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
        digests: hashes of the texts of the batch, where copies are looked for: (texts, 2).
        notes: of the texts of the batch, beside these, (texts,).
        left_out: documents that are known to be copies, of which there are no ids, (documents,).
    """

    batch: DocumentBatch
    kept: npt.NDArray[np.bool_]
    stream: npt.NDArray[Any]
    lengths: Ints
    in_holdout: npt.NDArray[np.bool_]
    digests: Keys | None = None
    notes: Keys | None = None
    left_out: npt.NDArray[np.bool_] | None = None

    @property
    def values(self) -> tuple[pa.Array, ...]:
        """Of the columns that are kept: (documents,) each."""
        if self.kept.all():
            return self.batch.values
        kept = pa.array(self.kept)
        return tuple(column.filter(kept) for column in self.batch.values)


class Sink(Protocol):
    """Takes the documents of one part."""

    def add(self, tokens: Tokens) -> None:
        """Append documents."""
        ...


class Packed:
    """Documents packed into the files of a part."""

    def __init__(self, folder: Path, part: int, spec: DatasetSpec, memories: Memories) -> None:
        self._files = PartFiles(folder, part, spec, memories)

    def add(self, tokens: Tokens) -> None:
        """Append documents."""
        rows = tokens.batch.rows[tokens.kept]
        self._files.add(
            tokens.stream, rows, tokens.lengths, tokens.in_holdout, values=tokens.values
        )

    def finish(self) -> dict[Split, SplitPart]:
        """Write what is left, and say what each split holds."""
        return self._files.finish()


class KeptInOrder:
    """Documents in their order, with hashes of their texts.

    Attributes:
        runs: the only one that was written.
        digests: runs of the hashes.
    """

    def __init__(
        self, folder: Path, part: int, spec: DatasetSpec, documents: PartDocuments
    ) -> None:
        self._spec, self._of_pieces = spec, _OfPieces(documents)
        self._run = KeptOrderRun(folder, part, spec)
        self._digests = DigestRuns(folder, part)
        self.runs: tuple[Run, ...] = ()
        self.digests: tuple[Run, ...] = ()

    @property
    def documents(self) -> tuple[int, ...]:
        """Documents of each piece."""
        return self._of_pieces.counts

    def add(self, tokens: Tokens) -> None:
        """Append documents."""
        rows = tokens.batch.rows[tokens.kept]
        self._of_pieces.add(rows)
        self._run.add(
            tokens.stream,
            rows=rows,
            lengths=tokens.lengths,
            sizes=np.diff(text_buffers(tokens.batch.texts)[1])[tokens.kept],
            in_holdout=tokens.in_holdout,
            left_out=tokens.left_out,
            values=tokens.values,
        )
        assert tokens.digests is not None  # noqa: S101  (copies are looked for)
        notes = np.zeros(len(rows), np.uint64)
        if tokens.notes is not None:
            notes = tokens.notes[tokens.kept]
        self._digests.add(tokens.digests[tokens.kept], rows, notes)

    def finish(self) -> dict[Split, SplitPart]:
        """Close the run, and say what each split holds; nothing is packed."""
        self.runs, self.digests = self._run.finish(), self._digests.finish()
        return _counted(self._run.counts, self._spec)


class Sorted:
    """Documents sorted by their keys.

    Attributes:
        runs: that were written.
        digests: runs of hashes, where copies are looked for.
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
        one_run: bool = False,
    ) -> None:
        """Begin with no run.

        Args:
            folder: an empty one on scratch.
            part: number of the part.
            spec: with the shuffle.
            first_source: number of the source of its first piece; those of further pieces follow.
            documents: of the part, as they are read.
            one_run: in the end all runs are merged into one.
        """
        self._spec, self._first_source = spec, first_source
        self._folder, self._part, self._one_run = folder, part, one_run
        self._writer = RunWriter(folder, part, spec)
        self._digests = DigestRuns(folder, part)
        self._of_pieces = _OfPieces(documents)
        self.runs: tuple[Run, ...] = ()
        self.digests: tuple[Run, ...] = ()

    @property
    def documents(self) -> tuple[int, ...]:
        """Documents of each piece."""
        return self._of_pieces.counts

    def add(self, tokens: Tokens) -> None:
        """Append documents."""
        batch, kept = tokens.batch, tokens.kept
        rows = batch.rows[kept]
        sources, places = self._of_pieces.add(rows) + self._first_source, batch.named_by[kept]
        self._writer.add(
            tokens.stream,
            sources=sources,
            places=places,
            rows=rows,
            lengths=tokens.lengths,
            sizes=np.diff(text_buffers(batch.texts)[1])[kept],
            in_holdout=tokens.in_holdout,
            values=tokens.values,
        )
        if tokens.digests is not None:
            keys = document_keys(self._spec.shuffle_seed, sources, places)
            self._digests.add(tokens.digests[kept], rows, keys)

    def finish(self) -> dict[Split, SplitPart]:
        """Write the last run, and say what each split holds; nothing is packed."""
        self.runs, self.digests = tuple(self._writer.finish()), self._digests.finish()
        if self._one_run and len(self.runs) > 1:
            self.runs = (merged(self._folder, self._part, self._spec, self.runs),)
        return _counted(self._writer.counts, self._spec)


class _OfPieces:
    """How many documents there are of each piece of a part."""

    def __init__(self, documents: PartDocuments) -> None:
        self._documents = documents
        self._counts = np.zeros(documents.num_pieces, np.int64)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(self._counts.tolist())

    def add(self, rows: Ints) -> Ints:
        """Count documents of the last batch; returns the piece of each."""
        pieces = self._documents.pieces_of(rows)
        self._counts += np.bincount(pieces, minlength=len(self._counts))
        return pieces


def _counted(counts: Mapping[bool, tuple[int, int]], spec: DatasetSpec) -> dict[Split, SplitPart]:
    """Documents and tokens of each split, of which nothing is packed."""
    of_split = {SPLITS[int(held_out)]: each for held_out, each in counts.items()}
    return {
        split: SplitPart(
            documents=of_split[split][0], tokens=of_split[split][1], padding=0, shards=()
        )
        for split in spec.splits
    }
