"""Which documents are compared with their sources, and the ids that the shards hold of them."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from streaming_ext.dataset.layout import SPLITS, Split
from streaming_ext.dataset.record import PartRecord
from tasks.core.reading.shard_tokens import Ids

DEFAULT_SAMPLE = 200  # documents
MAX_SAMPLED_TOKENS = 2**17  # longer documents are left to the checks of every byte


@dataclass(kw_only=True, slots=True)
class Sampled:
    """A document to tokenize again.

    Attributes:
        part: that it lies in.
        group, row: its source and row there in a shuffled dataset, else its part and row.
        start, tokens: its ids begin there in the stream of its split, and are so many.
        shard: path of the shard that holds the last of them.
        ids: as the shards hold them, with the end-of-text id; fewer where one is damaged.
    """

    part: int
    split: Split
    group: int
    row: int
    start: int
    tokens: int
    shard: str = ""
    ids: list[Ids] = field(default_factory=list)

    def take(self, flat: Ids, begin: int, shard: str) -> None:
        """Copy what a shard holds of it; its ids begin at `begin` of the stream."""
        first, end = self.start - begin, self.start - begin + self.tokens + 1
        if first < len(flat) and end > 0:
            self.ids.append(flat[max(first, 0) : end].astype(np.uint32))
            self.shard = shard


def choose_parts(documents: Mapping[int, int], sample: int, seed: int) -> dict[int, int]:
    """How many documents to take of which part: as evenly as can be, the parts drawn by seed.

    Args:
        documents: of each part.
        sample: documents in all; fewer only where there are no more.
        seed: decides which parts they are of.
    """
    parts = list(documents)
    random.Random(seed).shuffle(parts)  # noqa: S311
    chosen = dict.fromkeys(parts, 0)
    left = min(sample, sum(documents.values()))
    while left:  # what small parts lack of their share, others have more of
        others = [part for part in parts if chosen[part] < documents[part]]
        for index, part in enumerate(others):
            share = (index + 1) * left // len(others) - index * left // len(others)
            chosen[part] += min(share, documents[part] - chosen[part])
        left = min(sample, sum(documents.values())) - sum(chosen.values())
    return {part: share for part, share in sorted(chosen.items()) if share}


def choose(record: PartRecord, listed: pa.Table, count: int, seed: int) -> list[Sampled]:
    """Draw documents of a part; longer ones than `MAX_SAMPLED_TOKENS` are passed over."""
    # Twice as many as wanted, for some are too long.
    numbers = range(len(listed))
    drawn = random.Random(f"{seed}:{record.part}").sample(numbers, min(len(numbers), 2 * count))  # noqa: S311
    tokens, splits = listed["tokens"].to_numpy(), listed["split"].to_numpy()
    # starts: (documents,), where each begins in the stream of its split
    starts = np.zeros(len(tokens), np.int64)
    for number in range(len(SPLITS)):
        own = splits == number
        starts[own] = np.cumsum(tokens[own] + 1) - tokens[own] - 1
    chosen = (
        listed.append_column("start", pa.array(starts))
        .take(pa.array(drawn, pa.int64()))
        .to_pylist()
    )
    return [
        Sampled(
            part=record.part,
            split=SPLITS[one["split"]],
            group=one["source"],
            row=one["row"],
            start=one["start"],
            tokens=one["tokens"],
        )
        for one in chosen
        if one["tokens"] <= MAX_SAMPLED_TOKENS
    ][:count]
