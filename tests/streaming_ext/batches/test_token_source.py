"""Order, partition, checkpoint and loader read any token source: here an array in memory."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.base.arrays import Flags, Ints, Tokens
from streaming_ext.batches.masks import Boundaries
from streaming_ext.batches.token_source import ReadAhead, Spans, TokenRows, TokenSource
from streaming_ext.loading.batch_reader import BatchReader
from tests.streaming_ext.build import Built


class ArrayRows:
    def __init__(self, rows: Tokens) -> None:
        self.rows = rows

    def ready(self, rows: slice) -> bool:
        return True

    def held(self, rows: slice) -> AbstractContextManager[None]:
        return nullcontext()

    def tokens(self, rows: slice) -> Tokens:
        return self.rows[rows].copy()

    def start_inside(self, rows: slice, eot_id: int) -> Flags:
        raise NotImplementedError

    def boundaries(self, rows: slice, *, steps: int, real: Flags, targets: bool) -> Boundaries:
        raise NotImplementedError

    def spans(self, rows: slice) -> Spans:
        raise NotImplementedError

    def cost(self, rows: slice) -> int:
        return 0


class ArraySource:
    """One stream: sequence i is 8 times the number i."""

    dtype: np.dtype[Any] = np.dtype(np.uint16)
    fingerprints: tuple[str, ...] = ("numbers",)
    eot_id: int | None = None
    patience = 10.0
    hold_limit: int | None = None
    multiple = 1
    shard_count = 1

    def bounds(self, length: int) -> list[Ints]:
        return [np.array([0, 585])]

    def find_ends(self, eot_id: int) -> None:
        raise NotImplementedError

    def start_process(self) -> None: ...

    def close(self) -> None: ...

    def locate(self, streams: Ints, sequences: Ints, length: int) -> TokenRows:
        return ArrayRows(np.repeat(sequences.astype(np.uint16)[:, None], length, axis=1))

    def read_ahead(
        self, upcoming: Iterable[tuple[range, Ints, Ints]], length: int, bounds: ReadAhead
    ) -> AbstractContextManager[Callable[[], None]]:
        return nullcontext(lambda: None)


def open_numbers(raw: Built, **changes: Any) -> StreamingTokenDataset:
    settings = {"local": raw.root, "batch_size": 4, "shuffle": True, "shuffle_block_size": 50,
                "dp_rank": 0, "dp_world_size": 1, "extras": ["sequence_ids"]}  # fmt: skip
    dataset = StreamingTokenDataset(**(settings | changes))
    source: TokenSource = ArraySource()
    dataset.batch_reader = BatchReader(
        dataset.plan, source, sequence_length=8, extras=["sequence_ids"], eot_id=None,
        predownload=8,
    )  # fmt: skip
    return dataset


def numbers(loader: StreamingTokenLoader) -> list[list[int]]:
    batches = [batch["tokens"].tolist() for batch in loader]
    assert all(len(set(row)) == 1 for batch in batches for row in batch)
    return [[row[0] for row in batch] for batch in batches]


def test_an_epoch_in_the_order_of_the_shards(raw: Built) -> None:
    shards = StreamingTokenDataset(
        local=raw.root, batch_size=4, shuffle=True, shuffle_block_size=50, dp_rank=0,
        dp_world_size=1, extras=["sequence_ids"],
    )  # fmt: skip
    expected = [batch["sequence_ids"].tolist() for batch in StreamingTokenLoader(shards)]
    found = numbers(StreamingTokenLoader(open_numbers(raw)))
    assert found == expected
    assert len(found) == 146


def test_a_resume_on_two_ranks(raw: Built) -> None:
    whole = numbers(StreamingTokenLoader(open_numbers(raw)))
    loader = StreamingTokenLoader(open_numbers(raw))
    iterator = iter(loader)
    for _ in range(40):
        next(iterator)
    rest = []
    for rank in range(2):
        half = StreamingTokenLoader(
            open_numbers(raw, batch_size=2, dp_rank=rank, dp_world_size=2), num_workers=rank
        )
        half.load_state_dict(loader.state_dict())
        rest.append(numbers(half))
    steps = [sorted(a + b) for a, b in zip(*rest, strict=True)]
    assert steps == [sorted(step) for step in whole[40:]]
    assert len(steps) == 106
