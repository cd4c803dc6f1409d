"""What a batch says about documents: targets, positions and boundaries, from end-of-text ids alone.

A document ends in one end-of-text id; an end-of-text id behind another one is padding. Boundaries
are few: they are found for the rows of many steps at once, and spread over the tokens of each step
only where a mask asks for a value a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.batches.ends import DocumentEnds

MASKS: Final = ("targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen")
IGNORED: Final = -100  # what torch's cross entropy leaves out
Small = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """The parts of rows that lie in one shard each, in order; most rows are one piece.

    Attributes:
        shards: of each piece: (pieces,).
        starts: first token of each, counted in its shard: (pieces,).
        stops: the token behind each: (pieces,).
        rows: number of the row of each: (pieces,).
        columns: place in its row that each begins at: (pieces,).
        empty: of pieces that stand for rows which only fill up a batch: (pieces,).
        opens: whether a piece is the first of its row: (pieces,).
        closes: whether it is the last: (pieces,).
    """

    shards: Ints
    starts: Ints
    stops: Ints
    rows: Ints
    columns: Ints
    empty: Flags
    opens: Flags
    closes: Flags


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundaries:
    """Where documents and padding begin and end in the rows of some steps.

    A segment is what a row holds of a document, or of padding. Places count from the start of a
    step, whose rows are laid end to end.

    Attributes:
        edges: of each step the first place of every segment, then its end:
            (segments + steps,).
        edge_steps: which of them are of each step: (steps + 1,).
        lengths: tokens of each segment; below zero at the end of a step: (segments + steps,).
        numbers: of each segment in its row; without meaning at the end of a step:
            (segments + steps,).
        longest: tokens of the longest segment of each step: (steps,).
        ignored: places without a target, besides the last of each row: (ignored,).
        ignored_steps: which of them are of each step: (steps + 1,).
        last_targets: target of the last token of each row, where targets are wanted: (rows,).
    """

    edges: Small
    edge_steps: Ints
    lengths: Small
    numbers: Small
    longest: Small
    ignored: Ints
    ignored_steps: Ints
    last_targets: Ints

    @classmethod
    def find(
        cls, pieces: Pieces, ends: DocumentEnds, after: Ints | None, *, rows: int, length: int
    ) -> "Boundaries":
        """Find the boundaries of some steps, from where documents end in the shards.

        Args:
            pieces: of the rows of all steps.
            ends: of the shards, which are open.
            after: the token after each row, -1 where the shard of its last token does not hold
                it; None where no targets are wanted.
            rows: of each step.
            length: of each row.
        """
        flat, size = ends.flat, rows * length  # size: tokens a step
        first, stop = ends.between(pieces.shards, pieces.starts, pieces.stops)
        last_targets = np.empty(0, np.int64)
        # An end at the last place of a row is no edge of its own: the next row begins there.
        at_end = pieces.closes & ~pieces.empty & (flat[stop - 1] == pieces.stops - 1)
        if after is not None:
            last_targets = np.where(after < 0, IGNORED, after)
            last_targets[pieces.rows[at_end & (flat[stop] == pieces.stops)]] = IGNORED
        counts = np.where(pieces.empty, 0, stop - first - at_end)
        row = pieces.rows % rows
        closes_step = pieces.closes & (row == rows - 1)
        # Besides its ends a piece has an edge where it opens a row, and where it closes a step.
        slots = counts + pieces.opens + closes_step
        behind = np.cumsum(slots)
        begin = behind - slots
        places = row * length + pieces.columns
        source = np.arange(behind[-1]) + np.repeat(first - begin - pieces.opens, slots)
        edges = flat[source] + np.repeat((places - pieces.starts + 1).astype(np.int32), slots)
        edges[begin[pieces.opens]] = places[pieces.opens]
        edges[behind[closes_step] - 1] = size
        edge_steps = np.append(0, behind[closes_step])
        row_starts = begin[pieces.opens]

        ignored = np.empty(0, np.int64)
        alone = np.flatnonzero(edges[1:] == edges[:-1] + 1)  # segments of one token
        if alone.size:
            tokens = edges[alone] + (np.searchsorted(edge_steps, alone, side="right") - 1) * size
            begins = pieces.rows * length + pieces.columns
            piece = np.searchsorted(begins, tokens, side="right") - 1
            inside = pieces.starts[piece] + tokens - begins[piece]
            padding = ends.are_padding(pieces.shards[piece], inside) & ~pieces.empty[piece]
            alone, tokens = alone[padding], tokens[padding]
        if alone.size:
            goes_on = tokens % length > 0  # in the row of the token before
            # The token before padding has nothing to predict.
            ignored = np.union1d(tokens, tokens[goes_on] - 1)
            # All padding of a row is one segment.
            within = alone[1:][(alone[1:] == alone[:-1] + 1) & goes_on[1:]]
            edges = np.delete(edges, within)
            edge_steps -= np.searchsorted(within, edge_steps)
            row_starts -= np.searchsorted(within, row_starts)
        lengths = np.diff(edges, append=np.int32(0))
        numbers = np.arange(len(edges), dtype=np.int32)
        numbers -= np.repeat(row_starts.astype(np.int32), np.diff(row_starts, append=len(edges)))
        return cls(
            edges=edges,
            edge_steps=edge_steps,
            lengths=lengths,
            numbers=numbers,
            longest=np.maximum.reduceat(lengths, edge_steps[:-1]),
            ignored=ignored % size,
            ignored_steps=np.searchsorted(ignored, np.arange(len(edge_steps)) * size),
            last_targets=last_targets,
        )

    @classmethod
    def joined(cls, parts: Sequence["Boundaries"]) -> "Boundaries":
        """Those of some steps that come one behind the other."""
        if len(parts) == 1:
            return parts[0]
        told = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(cls)
        }
        for name in ("edge_steps", "ignored_steps"):
            # counts of each step, then their sums: (steps + 1,)
            counts = [np.diff(getattr(part, name)) for part in parts]
            told[name] = np.append(0, np.cumsum(np.concatenate(counts)))
        return cls(**told)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def taken_from(cls, arrays: dict[str, Any]) -> "Boundaries | None":
        """Take them out of other arrays again, where they are among them."""
        if "edges" not in arrays:
            return None
        return cls(**{field.name: arrays.pop(field.name) for field in fields(cls)})
