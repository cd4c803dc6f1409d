"""Whether the documents of a part stand in the order that they should: by rows, or by keys."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.provenance import DocumentRows
from streaming_ext.dataset.record import PartRecord
from streaming_ext.dataset.shuffled.keys import document_keys, key_range
from streaming_ext.dataset.shuffled.source_table import Source
from tasks.core.outputs.whole import tables_of
from tasks.core.verify.findings import Outcome


class Order(Protocol):
    """Looks at the documents of one part, batch by batch."""

    def problem(self, batch: DocumentRows, first: int) -> str | None:
        """What is wrong with a batch; `first` is the number of its first document."""
        ...

    def finish(self) -> None:
        """All documents of the part were looked at, and nothing was wrong."""
        ...


class ByRow:
    """Rows of the source, ascending."""

    def __init__(self, record: PartRecord) -> None:
        self._rows, self._last = record.rows, -1

    def problem(self, batch: DocumentRows, first: int) -> str | None:
        """See `Order.problem`."""
        # rows: (documents of the batch + 1,), with the one before them in front
        rows = np.concatenate((np.array([self._last], np.int64), batch.rows))
        if len(wrong := np.flatnonzero(rows[1:] <= rows[:-1])):
            index = int(wrong[0])
            return (
                f"document {first + index} is row {int(rows[index + 1])} of the source, "
                f"after row {int(rows[index])}: expected ascending rows from 0 on"
            )
        self._last = int(rows[-1])
        if self._last >= self._rows:
            return f"row {self._last}, but the source has {self._rows} rows"
        return None

    def finish(self) -> None:
        """Nothing is left."""


@dataclass(frozen=True, slots=True)
class Shuffled:
    """What one generation of a shuffled dataset added: parts and sources, each from one to a next.

    Its documents are permuted among themselves.
    """

    parts: tuple[int, int]
    sources: tuple[int, int]

    def key_range(self, part: int) -> tuple[int, int]:
        """The keys [start, end) of a part, by its number in the dataset."""
        first, end = self.parts
        return key_range(part - first, end - first)


def shuffled_of(manifest: Manifest) -> list[Shuffled]:
    """What each generation of a shuffled dataset added, the oldest first."""
    counts = [(each.parts, each.shuffled) for each in manifest.generations]
    counts.append((len(manifest.parts), manifest.shuffled))
    ends = [(parts, summary.files) for parts, summary in counts if summary is not None]
    return [
        Shuffled((first, end), (first_source, end_source))
        for (first, first_source), (end, end_source) in pairwise([(0, 0), *ends])
    ]


class ShuffledSources:
    """The sources of a shuffled dataset, and how many documents of each its parts list."""

    def __init__(self, sources: Sequence[Source], manifest: Manifest) -> None:
        self.sources, self.parts = sources, len(manifest.parts)
        self.path = tables_of(manifest)[-1].path
        self._generations = shuffled_of(manifest)
        self.rows = np.array([source.rows for source in sources], np.int64)
        self._listed = np.zeros(len(sources), np.int64)
        self._parts_done = 0
        self._lock = threading.Lock()

    def generation_of(self, part: int) -> Shuffled:
        """The generation that added a part."""
        return next(each for each in self._generations if part < each.parts[1])

    def count(self, listed: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        """A part lists so many documents of each source."""
        with self._lock:
            self._listed += listed
            self._parts_done += 1

    def count_left_out(self, sources: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        """Documents of these sources were left out as copies."""
        with self._lock:
            self._listed += np.bincount(sources, minlength=len(self.rows))

    def compare(self, out: Outcome) -> None:
        """Find sources of which documents are lost, where the lists of all parts were sound."""
        if self._parts_done < self.parts:
            return
        wanted = np.array([source.documents for source in self.sources], np.int64)
        for number in np.flatnonzero(self._listed != wanted)[:3].tolist():
            out.found(
                self.path,
                f"{wanted[number]} documents of {self.sources[number].identity.url}, the parts "
                f"list {self._listed[number]}",
            )


class ByKey:
    """The order that the seed of the shuffle gives: keys ascending, within the part's range."""

    def __init__(self, record: PartRecord, sources: ShuffledSources) -> None:
        self._seed = record.spec.shuffle_seed
        generation = sources.generation_of(record.part)
        self._range, self._own = generation.key_range(record.part), generation.sources
        self._sources = sources
        self._listed = np.zeros(len(sources.rows), np.int64)
        self._last = (self._range[0], -1, -1)

    def problem(self, batch: DocumentRows, first: int) -> str | None:
        """See `Order.problem`."""
        if batch.sources is None or batch.places is None:
            return "names no sources, as the documents of a shuffled dataset do"
        count = len(self._sources.rows)
        if len(wrong := np.flatnonzero((batch.sources < 0) | (batch.sources >= count))):
            index = int(wrong[0])
            return (
                f"document {first + index} is of source {int(batch.sources[index])}, there are "
                f"{count}"
            )
        others = (batch.sources < self._own[0]) | (batch.sources >= self._own[1])
        if len(wrong := np.flatnonzero(others)):
            index = int(wrong[0])
            return (
                f"document {first + index} is of source {int(batch.sources[index])}, which another "
                f"generation added: expected {self._own[0]} to {self._own[1] - 1}"
            )
        rows = self._sources.rows[batch.sources]
        if len(wrong := np.flatnonzero((batch.rows < 0) | (batch.rows >= rows))):
            index = int(wrong[0])
            return (
                f"document {first + index} is row {int(batch.rows[index])} of source "
                f"{int(batch.sources[index])}, which has {int(rows[index])} rows"
            )
        # each: (documents of the batch + 1,), with the one before them in front
        keys, sources, own = (
            np.concatenate((np.array([before], now.dtype), now))
            for before, now in zip(
                self._last,
                (document_keys(self._seed, batch.sources, batch.places), batch.sources, batch.rows),
                strict=True,
            )
        )
        same, same_source = keys[1:] == keys[:-1], sources[1:] == sources[:-1]
        later = (sources[1:] > sources[:-1]) | same_source & (own[1:] > own[:-1])
        wrong = np.flatnonzero((keys[1:] < keys[:-1]) | same & ~later)
        beyond = np.flatnonzero(keys[1:] > np.uint64(self._range[1] - 1))
        if len(wrong) or len(beyond):
            index = int(min([*wrong[:1], *beyond[:1]]))
            return (
                f"document {first + index}, row {int(batch.rows[index])} of source "
                f"{int(batch.sources[index])}, does not stand where the permutation of seed "
                f"{self._seed} puts it"
            )
        self._last = (int(keys[-1]), int(sources[-1]), int(own[-1]))
        self._listed += np.bincount(batch.sources, minlength=count)
        return None

    def finish(self) -> None:
        """See `Order.finish`."""
        self._sources.count(self._listed)


class AnyOrder:
    """For a part of which nothing tells the order: the table of its sources is damaged."""

    def problem(self, batch: DocumentRows, first: int) -> str | None:
        """Nothing can be told."""
        return None

    def finish(self) -> None:
        """Nothing is left."""


def order_of(record: PartRecord, sources: ShuffledSources | None) -> Order:
    """The order in which the documents of a part should stand."""
    if record.spec.shuffle is None:
        return ByRow(record)
    return AnyOrder() if sources is None else ByKey(record, sources)
