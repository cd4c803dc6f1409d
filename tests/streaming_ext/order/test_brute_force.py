"""Random loader configurations: every sequence once, and the same steps after any state."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import UsageError
from tests.streaming_ext.build import Built, build, numbered_parts, some_documents
from tests.streaming_ext.loading import pairs_of, saved

SEED = 20_261_124
MASKS = ("targets", "position_ids", "document_ids", "starts_inside")
Row = tuple[int, int, Any]  # stream, sequence number, tokens and masks
Step = tuple[int, list[Row]]  # epoch, rows


@dataclass(frozen=True)
class Data:
    """Three datasets, and a table of documents that training may leave out."""

    built: tuple[Built, ...]
    excluded: Path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("brute_force")
    shapes = ((160, 4, 3), (45, 3, 1), (70, 7, 2))  # documents, samples per shard, parts
    built = tuple(
        build(
            folder / str(number),
            numbered_parts(some_documents(count, seed=number), parts=parts),
            compression="none",
            shard_samples=samples,
        )
        for number, (count, samples, parts) in enumerate(shapes)
    )
    table = pa.table({"source": ["mem://source-0.parquet"] * 3, "row": [1, 7, 12]})
    pq.write_table(table, folder / "excluded.parquet")
    return Data(built, folder / "excluded.parquet")


@dataclass(frozen=True)
class Configuration:
    """Arguments of a dataset, and the conditions of its two runs.

    Attributes:
        settings: arguments of the dataset, without those of a rank.
        ranks: number of ranks before and after the state.
        workers: workers per loader, before and after the state.
        length: tokens of the longest sequence.
        step: the step after which the state is saved.
        built: the datasets of its streams.
    """

    settings: dict[str, Any]
    ranks: tuple[int, int]
    workers: tuple[int, int]
    length: int
    step: int
    built: tuple[Built, ...]

    @property
    def alone(self) -> "Configuration":
        """The same without workers, and on one rank if that gives the same steps."""
        of_ranks = self.settings["batching_method"] == "device_per_stream"
        return replace(self, workers=(0, 0), ranks=self.ranks if of_ranks else (1, 1))


def configuration(seed: int, data: Data) -> Configuration:
    """Draw a configuration; a dataset refuses one that contradicts itself."""
    draw = random.Random(SEED + seed)
    some = draw.sample(data.built, draw.choice((1, 1, 1, 2, 3)))
    length = draw.choice((4, 8, 8, 12, 16))
    batch = draw.choice((6, 12, 18))
    settings: dict[str, Any] = {
        "shuffle": draw.random() < 0.8,
        "shuffle_seed": draw.randrange(1000),
        "shuffle_block_size": draw.choice((1, 5, 40, 1000)),
        "num_canonical_nodes": draw.choice((None, 1, 2, 3, 5, 8)),
        "drop_last": draw.choice((None, True, False)),
        "split": "holdout" if draw.random() < 0.1 else "train",
        "global_batch": batch,
        "sequence_length": length,
        "extras": ["stream_ids", "sequence_ids", *draw.sample(MASKS, draw.randrange(4))],
    }
    if draw.random() < 0.25:
        settings |= {"packing": "best_fit", "document_multiple": draw.choice((None, 1, 2, 4))}
    if draw.random() < 0.15:
        settings["max_repeated_ngram"] = draw.choice((1, 3))
    if draw.random() < 0.1:
        settings["exclude"] = data.excluded
    settings["streams"], kind = _streams(draw, some)
    if kind in ("proportion", "schedule") or (kind == "all" and len(some) == 1):
        settings["epoch_size"] = draw.choice((None, 37, 120, 333))
    kinds = ("random", "random", "stratified", "per_stream", "device_per_stream")
    method = draw.choice(kinds) if len(some) > 1 else "random"
    settings["batching_method"] = method
    if method == "random" and draw.random() < 0.4:
        settings["global_batch"] = f"0:{batch} {draw.randrange(1, 4000)}:{2 * batch}"
    if method == "random" and "packing" not in settings and draw.random() < 0.3:
        settings["sequence_length"] = f"0:{length // 2} {draw.randrange(1, 4000)}:{length}"
    if {str} & {type(settings[name]) for name in ("global_batch", "sequence_length")}:
        settings |= {"split": "train", "drop_last": True}
    ranks = draw.choice((1, 2, 3, 6)), draw.choice((1, 2, 3, 6))
    if method == "device_per_stream":  # its state is for its own number of ranks
        ranks = ranks[0], ranks[0]
    workers = draw.choice((0, 0, 1, 2)), draw.choice((0, 0, 1, 2))
    return Configuration(settings, ranks, workers, length, draw.randrange(60), tuple(some))


def _streams(draw: random.Random, some: list[Built]) -> tuple[list[TokenStream], str]:
    """Draw the streams, and the kind of setting that limits each of them in an epoch."""
    several = ("proportion", "schedule") if len(some) > 1 else ()
    kind = draw.choice(("all", "proportion", *several, "repeat", "choose"))
    limits = draw.random() < 0.3 and kind in several
    found = []
    for built in some:
        amount: dict[str, Any] = {}
        if kind == "proportion":
            amount["proportion"] = draw.choice((1, 2, 0.5))
        elif kind == "schedule":
            first, last = draw.randrange(1, 9), draw.randrange(1, 9)
            amount["proportion"] = f"0:{first} {draw.randrange(1, 5000)}:{last}"
        elif kind == "repeat":
            amount["repeat"] = draw.choice((0.5, 1, 1.7))
        elif kind == "choose":
            amount["choose"] = draw.choice((30, 61))
        if limits:
            amount["max_repeats"] = draw.choice((2, 3.5, 9))
        found.append(TokenStream(local=built.root, **amount))
    return found, kind


def opened(found: Configuration, rank: int, run: int) -> StreamingTokenLoader:
    dataset = StreamingTokenDataset(dp_rank=rank, dp_world_size=found.ranks[run], **found.settings)
    return StreamingTokenLoader(dataset, num_workers=found.workers[run])


def steps_of(loader: StreamingTokenLoader, count: int) -> Iterator[Step]:
    """Yield the epoch and this rank's rows of some steps, across the ends of epochs."""
    taken = 0
    while taken < count:
        for batch in loader:
            batch.setdefault("real", np.ones(len(batch["tokens"]), bool))
            arrays = [batch[name] for name in ("tokens", "real", *MASKS) if name in batch]
            yield (
                loader.epoch,
                [
                    (*key, tuple(np.asarray(values[row]).tolist() for values in arrays))
                    for row, key in enumerate(pairs_of(batch))
                ],
            )
            taken += 1
            if taken == count:
                return


def run(found: Configuration, which: int, state: Any, count: int) -> list[Step]:
    """Return some steps, each with the sorted rows of all ranks."""
    together: list[Step] = []
    for rank in range(found.ranks[which]):
        loader = opened(found, rank, which)
        if state is not None:
            loader.load_state_dict(state)
        own = list(steps_of(loader, count))
        merged = [(epoch, a + b) for (epoch, a), (_, b) in zip(together, own, strict=bool(rank))]
        together = merged if rank else own
    return [(epoch, sorted(rows)) for epoch, rows in together]


def check(found: Configuration) -> int:
    """Compare the runs of a configuration up to the first fault; return the number of steps."""
    first = opened(found, 0, 0)
    whole = len(first)
    count = min(40, 2 * whole if first.dataset.drop_last else whole)
    reference = run(found.alone, 0, None, count)
    require_coverage(found, reference[:whole], first)
    assert run(found, 0, None, count) == reference, "on other ranks and workers"
    done = found.step % count
    assert len(list(steps_of(first, done))) == done
    state = saved(first)
    left = min(6, count - done)
    assert run(found, 1, state, left) == reference[done : done + left], "behind a state"
    return count + left


def require_coverage(found: Configuration, steps: list[Step], loader: StreamingTokenLoader) -> None:
    """Check that no sequence repeats before all came, and that an epoch holds all it must."""
    plan, settings, packed = loader.dataset.plan, found.settings, "packing" in found.settings
    came: Counter[tuple[int, int]] = Counter()  # counted in halves of the longest sequences
    half = found.length // 2
    for _, rows in steps:
        for stream, number, (tokens, real, *_) in rows:
            begin = number * len(tokens)
            if number >= 0 and not packed:
                split = found.built[stream].streams[settings["split"]]
                assert tokens == split[begin : begin + len(tokens)].tolist(), "other tokens"
            if number >= 0:
                came.update((stream, at // half) for at in range(begin, begin + len(tokens), half))
            else:
                assert not real
    assert came
    drawn = plan.drawn(plan.after(plan.start(0), len(steps)))
    for (stream, _), times in came.items():
        assert times <= ceil(drawn[stream] / plan.sizes[stream]), "a sequence came too early"
    if len(steps) == len(loader):
        held = sum(came.values()) / 2
        fillers = (plan.row - 1) * len(plan.sizes)  # at most, in the last row of each stream
        step = 2 * max(len(rows) for _, rows in steps)  # a schedule may double the last one
        last = step - 1 if loader.dataset.drop_last else 0
        assert 0 <= plan.epoch_size - held <= fillers + last


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 500), marks=pytest.mark.soak)])
def test_random_configurations(data, seeds) -> None:
    steps = refused = 0
    for seed in seeds:
        found = configuration(seed, data)
        try:
            steps += check(found)
        except UsageError:  # it contradicts itself, or a stream reaches its `max_repeats`
            refused += 1
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {found}: {error}") from error
    assert refused < len(seeds) / 2
    assert steps > 10 * len(seeds)
