"""Training on an older generation of a dataset continues on a newer one."""

import itertools
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import ConfigMismatchError
from streaming_ext.format.schema import content_hash
from tests.streaming_ext.loading import saved
from tests.tasks.core.build_dataset import build_dataset
from tests.tasks.core.extending.extended import extended, write_source

Rows = Counter[bytes]


def generations_of(
    folder: Path, sources: Sequence[list[str]], *more: list[str], **options: Any
) -> list[Path]:
    """Build a dataset and extend it step by step; return a copy of each generation."""
    root = build_dataset(folder / "made", sources, sequence_length=16, shard_size=1024, **options)
    found = [Path(shutil.copytree(root, folder / "0"))]
    for number, chosen in enumerate(more, start=1):
        extended(root, write_source(folder / "more" / f"{number}.parquet", chosen))
        found.append(Path(shutil.copytree(root, folder / str(number))))
    return found


TEXTS = [f"Number {number} of all documents: {number * 7919}." for number in range(600)]


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> list[Path]:
    """Three generations of a dataset: as built, extended once, and extended twice."""
    return generations_of(
        tmp_path_factory.mktemp("grown"),
        [TEXTS[:150], TEXTS[150:301]],
        TEXTS[301:423],
        TEXTS[423:],
        tokenizer=str(vocabulary),
        holdout_fraction=0,
    )


def opened(
    root: Path, *, rank: int = 0, ranks: int = 1, num_workers: int = 0, **options: Any
) -> StreamingTokenLoader:
    settings: dict[str, Any] = {
        "shuffle": True,
        "shuffle_seed": 5,
        "shuffle_block_size": 8,
        "num_canonical_nodes": 2,
        "batch_size": 4 // ranks,
        "drop_last": False,
        **options,
    }
    streams = [TokenStream(local=root, generation=settings.pop("generation", None))]
    dataset = StreamingTokenDataset(streams=streams, dp_rank=rank, dp_world_size=ranks, **settings)
    return StreamingTokenLoader(dataset, num_workers=num_workers)


def rows_of(batch: dict[str, Any]) -> list[bytes]:
    real = batch["real"] if "real" in batch else np.ones(len(batch["tokens"]), bool)
    return [
        np.asarray(row).tobytes()
        for row, counts in zip(batch["tokens"], real, strict=True)
        if counts
    ]


def rows_left(loader: StreamingTokenLoader) -> Rows:
    """Return the rows that are left of an epoch."""
    return steps(loader, None)[0]


def all_rows(root: Path) -> Rows:
    return rows_left(opened(root, shuffle=False))


def extended_from(state: dict[str, Any], root: Path, **options: Any) -> StreamingTokenLoader:
    """Open a newer generation and resume from a state of an older one."""
    loader = opened(root, **options)
    loader.load_state_dict(state, extend_state=True)
    return loader


def steps(loader: StreamingTokenLoader, count: int | None) -> tuple[Rows, dict[str, Any]]:
    """Return the rows of some steps, or of all that are left, and the state after them."""
    seen = Counter(row for batch in itertools.islice(loader, count) for row in rows_of(batch))
    return seen, saved(loader)


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"num_canonical_nodes": 8}])
@pytest.mark.parametrize("seed", range(4))
def test_each_sequence_comes_once_however_training_goes_on(generations, options, seed) -> None:
    """Training moves to other ranks and workers, and now and then to a newer generation."""
    draw = Random(seed)
    came = Counter()
    generation, state, goes_on = 0, None, True
    while goes_on:
        root, ranks = generations[generation], draw.choice([1, 2])
        loaders = [
            opened(root, rank=rank, ranks=ranks, num_workers=draw.choice([0, 0, 2]), **options)
            for rank in range(ranks)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state, extend_state=True)
        left = len(loaders[0]) - loaders[0].step
        goes_on = generation < 2 or draw.random() < 0.4
        whole = not goes_on or (generation < 2 and draw.random() < 0.2)
        before, count = state, None if whole else draw.randrange(left - 1)
        found = [steps(loader, count) for loader in loaders]
        state = found[0][1]
        came.update(sum((rows for rows, _ in found), Counter()))
        if goes_on:
            generation = min(2, generation + (1 if whole else draw.randint(0, 1)))
    assert came == all_rows(root)
    dataset = opened(root, **options).dataset
    dataset.load_state_dict(before, extend_state=True)
    samples = [sample for sample in dataset if sample["real"]]
    last = Counter(np.asarray(sample["tokens"]).tobytes() for sample in samples)
    assert last == sum((rows for rows, _ in found), Counter())
    # The next epoch is that of the newest generation alone.
    fresh = opened(root, rank=ranks - 1, ranks=ranks, **options)
    rows_left(fresh)
    assert [rows_of(batch) for batch in loaders[-1]] == [rows_of(batch) for batch in fresh]


def test_a_pass_that_grew_goes_on_in_epochs_of_another_size(generations) -> None:
    first, state = steps(opened(generations[0]), 9)
    loader = extended_from(state, generations[1])
    second, state = steps(loader, 6)
    wanted = all_rows(generations[1])
    left = wanted.total() - first.total() - second.total()
    changed = opened(generations[1], epoch_size=left)
    changed.load_state_dict(state, allow_changes=["epoch_size"])
    rest = rows_left(changed)
    assert first + second + rest == wanted
    # The next pass is a plain one.
    following = rows_left(changed)
    assert max(following.values()) == 1


def test_counts_are_of_what_came(generations) -> None:
    """Passes before an extension count with the length they had, however training resumes."""
    old = opened(generations[0], domain_by="folder", drop_last=True)
    steps(old, len(old))
    _, state = steps(old, 10)
    wanted, before = old.achieved()[0], old.tokens_seen
    loader = extended_from(state, generations[1], domain_by="folder", drop_last=True)
    dataset = opened(generations[1], domain_by="folder", drop_last=True).dataset
    dataset.load_state_dict(state, extend_state=True)
    for going_on in (loader, StreamingTokenLoader(dataset)):
        (found,) = going_on.achieved()
        assert (found.tokens, found.tokens_by_domain) == (before, wanted.tokens_by_domain)
    _, state = steps(loader, 5)
    for epoch_size in (None, 100):
        again = opened(generations[1], domain_by="folder", drop_last=True, epoch_size=epoch_size)
        again.load_state_dict(state, allow_changes=["epoch_size"])
        for _ in again:
            pass
        steps(again, 3)
        assert again.achieved()[0].tokens == again.tokens_seen
    twice = extended_from(state, generations[2], domain_by="folder", drop_last=True)
    assert twice.achieved()[0].tokens == loader.achieved()[0].tokens == loader.tokens_seen


def test_traced(generations) -> None:
    """`trace_document` and `trace` agree in a pass that grew."""
    _, state = steps(opened(generations[0]), 9)
    loader = extended_from(state, generations[1])
    (source,) = {
        part.source.url for part in loader.dataset.reader.caches[0].index.manifest.parts[2:]
    }
    for row in (0, 60, 121):
        (visit, *_) = loader.trace_document(source, row)
        held = [(each.rank, each.sequence) for each in loader.trace(visit.step)]
        assert (visit.rank, visit.sequence) in held


def test_without_the_request(generations) -> None:
    _, state = steps(opened(generations[0]), 9)
    with pytest.raises(ConfigMismatchError, match=r"older generation.*extend_state=True"):
        opened(generations[1]).load_state_dict(state)
    with pytest.raises(ConfigMismatchError, match="shuffle_seed"):
        opened(generations[1], shuffle_seed=6).load_state_dict(state, extend_state=True)
    parent = content_hash((generations[0] / "manifest.json").read_bytes())
    older = opened(generations[1], generation=parent)
    older.load_state_dict(state)
    assert sum(map(len, map(rows_of, older))) + 36 == older.dataset.size


def test_with_sequences_of_another_length(generations) -> None:
    """Positions of the old pass do not fit another length; the error says what to do."""
    old = opened(generations[0], drop_last=True)
    _, state = steps(old, 9)
    with pytest.raises(ConfigMismatchError, match=r"of 16 tokens where these have 32.*state first"):
        opened(generations[1], drop_last=True, sequence_length=32).load_state_dict(
            state, extend_state=True, allow_changes=["sequence_length", "epoch_size"]
        )
    loader = extended_from(state, generations[1], drop_last=True)
    _, state = steps(loader, 3)
    longer = opened(generations[1], drop_last=True, sequence_length=32)
    longer.load_state_dict(state, allow_changes=["sequence_length", "epoch_size", "streams"])
    assert longer.tokens_seen == loader.tokens_seen == 12 * 4 * 16


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> list[Path]:
    """A dataset, extended first by train documents only, then by documents of both splits."""
    found = generations_of(
        tmp_path_factory.mktemp("unlike"),
        [TEXTS[:100]],
        [TEXTS[102]],
        TEXTS[103:200],
        tokenizer=str(vocabulary),
        holdout_fraction=0.3,
    )
    indexes = [(each / "holdout/index.json").read_bytes() for each in found]
    assert indexes[0] == indexes[1] != indexes[2]
    return found


def test_of_a_split_that_an_extension_left_as_it_was(unlike) -> None:
    """A state of this split fits the older and the newer generation alike."""
    loaders = [opened(root, split="holdout") for root in unlike]
    seen, state = steps(loaders[0], 3)
    for extend in (False, True):
        loader = opened(unlike[1], split="holdout")
        loader.load_state_dict(state, extend_state=extend)
        rest = rows_left(loader)
        assert seen + rest == rows_left(loaders[0])
    more, state = steps(loaders[1], 4)
    again = opened(unlike[1], split="holdout")
    again.load_state_dict(state)
    assert len(list(again)) == len(loaders[1]) - 4
    with pytest.raises(ConfigMismatchError, match="older generation"):
        loaders[2].load_state_dict(state)
    loaders[2].load_state_dict(state, extend_state=True)
    rest = rows_left(loaders[2])
    whole = opened(unlike[2], split="holdout")
    assert more + rest == rows_left(whole)


def test_with_epochs_of_a_size(generations) -> None:
    """Epochs are shorter than the pass that grew, which still holds no sequence twice."""
    old, new = (opened(root, epoch_size=40, drop_last=True) for root in generations[:2])
    seen, state = steps(old, 10)
    old.load_state_dict(state)
    more, state = steps(old, 6)
    new.load_state_dict(state, extend_state=True)
    rest = []
    while len(rest) < new.dataset.size:
        rest += [row for batch in new for row in rows_of(batch)]
    left = (new.dataset.size - 64) // 4 * 4  # whole steps: the next one spans two passes
    found, wanted = seen + more + Counter(rest[:left]), all_rows(generations[1])
    assert not found - wanted
    assert sum(found.values()) == 64 + left > new.dataset.size - 4
