"""Changes that a state may be loaded with: some keep the position, others begin a new epoch."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from tests.streaming_ext.build import Built, build_some
from tests.streaming_ext.loading import pairs_of, saved, sequences

Load = Callable[..., StreamingTokenLoader]
Sequences = list[tuple[int, int]]


def taken(loader: StreamingTokenLoader, steps: int | None = None) -> Sequences:
    """Return stream and number of each sequence of some steps, or of the rest of the epoch."""
    return [pair for batch in itertools.islice(loader, steps) for pair in pairs_of(batch)]


@pytest.fixture
def opened(load: Load) -> Load:
    return partial(load, extras=["sequence_ids", "stream_ids"])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "excluded.parquet"
    pq.write_table(pa.table({"source": ["mem://source-1.parquet"], "row": [1]}), path)
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Built:
    root = tmp_path_factory.mktemp("other") / "dataset"
    return build_some(root, 300, seed=1, compression="none")


def test_another_size_of_an_epoch_is_no_other_data(opened, other) -> None:
    loader = opened(epoch_size=200)
    seen = taken(loader, 10)
    for size in (200, 300):
        with pytest.raises(ConfigMismatchError, match="streams: the state has"):
            opened(local=other.root, epoch_size=size).load_state_dict(
                saved(loader), allow_changes=["epoch_size"]
            )
    changed = opened(epoch_size=300)
    changed.load_state_dict(saved(loader), allow_changes=["epoch_size"])
    rest = taken(changed)
    assert len({*seen, *rest}) == len(seen) + len(rest) == 340
    replaced = opened(local=other.root, epoch_size=300)
    replaced.load_state_dict(saved(loader), allow_changes=["epoch_size", "streams"])
    assert saved(replaced)["streams"][0]["before"] == 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, ["exclude"]),
        ({}, ["exclude", "epoch_size", "streams"]),
        ({"packing": "best_fit", "document_multiple": 2}, ["packing", "document_multiple"]),
    ],
)
def test_other_sequences_begin_a_new_epoch(opened, table, changes, named) -> None:
    loader = opened(epoch_size=200)
    taken(loader, 10)
    changed = opened(epoch_size=200, **(changes or {"exclude": table}))
    changed.load_state_dict(saved(loader), allow_changes=named)
    assert (changed.epoch, changed.step) == (1, 0)
    assert changed.tokens_seen == loader.tokens_seen
    assert "packing" in changes or saved(changed)["streams"][0]["before"] == 40


def test_rows_of_another_length_count_as_many_tokens(opened) -> None:
    loader = opened(epoch_size=200, sequence_length=8)
    taken(loader)
    taken(loader, 10)
    longer = opened(epoch_size=200, sequence_length=16)
    longer.load_state_dict(saved(loader), allow_changes=["sequence_length"])
    assert (longer.epoch, longer.step) == (2, 0)
    assert longer.tokens_seen == loader.tokens_seen == 240 * 8
    assert longer.achieved()[0].tokens == 240 * 8
    taken(longer, 5)
    shorter = opened(epoch_size=200, sequence_length=4)
    shorter.load_state_dict(saved(longer), allow_changes=["sequence_length"])
    assert shorter.tokens_seen == longer.tokens_seen == (240 + 40) * 8
    assert shorter.achieved()[0].sequences == (240 + 40) * 2


@pytest.mark.parametrize(
    ("old", "new", "epoch"),
    [
        (("random", 8), ("random", 12), 0),
        (("stratified", 8), ("stratified", 12), 1),
        (("per_stream", 8), ("per_stream", 24), 1),
        (("random", 8), ("stratified", 8), 1),
        (("per_stream", 8), ("random", 8), 1),
        (("device_per_stream", 8), ("device_per_stream", 4), 1),
    ],
)
def test_steps_mixed_otherwise_begin_a_new_epoch_where_positions_do_not_fit(
    opened, raw, other, old, new, epoch
) -> None:
    """Each stream continues from its count: no sequence of a pass is repeated or missed."""
    streams = {
        "local": None,
        "streams": [TokenStream(local=built.root, choose=240) for built in (raw, other)],
    }
    loader = opened(**streams, batching_method=old[0], batch_size=old[1])
    seen = taken(loader, 24)
    changed = opened(**streams, batching_method=new[0], batch_size=new[1])
    named = ["batching_method", "global_batch"] if epoch else ["global_batch"]
    changed.load_state_dict(saved(loader), allow_changes=named)
    after = saved(changed)
    assert after["epoch"] == epoch
    assert [each["before" if epoch else "drawn"] for each in after["streams"]] == [
        sum(stream == number for stream, _ in seen) for number in range(2)
    ]
    rest = taken(changed)
    whole = 480 if epoch == 0 else 24 * 8 + 480
    assert len({*seen, *rest}) == len(seen) + len(rest) == whole


def test_a_finished_run_can_be_looked_at(opened, raw, other) -> None:
    """Its limits leave nothing for another epoch, but its usage can still be reported."""

    def loader() -> StreamingTokenLoader:
        streams = [
            TokenStream(local=built.root, proportion=1, max_repeats=0.1) for built in (raw, other)
        ]
        return opened(local=None, streams=streams, epoch_size=96)

    finished = loader()
    taken(finished)
    again = loader()
    again.load_state_dict(saved(finished))
    reported = [(usage.sequences, usage.tokens) for usage in again.achieved()]
    assert reported == [(usage.sequences, usage.tokens) for usage in finished.achieved()]
    assert again.tokens_seen == finished.tokens_seen == 96 * 8
    state = saved(again)
    assert [each["drawn"] for each in state["streams"]] == [48, 48]
    with pytest.raises(UsageError, match="has reached `max_repeats`"):
        next(iter(again))


def test_two_streams_of_one_dataset_have_a_count_each(opened, raw) -> None:
    def streams(*proportions: float) -> dict[str, Any]:
        return {
            "local": None,
            "domain_by": "folder",
            "streams": [
                TokenStream(local=raw.root, proportion=proportion) for proportion in proportions
            ],
        }

    loader = opened(**streams(0.8, 0.2), epoch_size=400)
    taken(loader, 60)
    reported = [stream["drawn"] for stream in saved(loader)["streams"]]
    assert reported[0] > 2 * reported[1]
    again = opened(**streams(0.8, 0.2), epoch_size=400)
    again.load_state_dict(saved(loader))
    assert again.achieved() == loader.achieved()
    changed = opened(**streams(0.8, 0.2), epoch_size=800)
    changed.load_state_dict(saved(loader), allow_changes=["epoch_size"])
    assert [stream["before"] for stream in saved(changed)["streams"]] == reported
    fewer = opened(**streams(1), epoch_size=400)
    fewer.load_state_dict(saved(loader), allow_changes=["streams"])
    assert [stream["before"] for stream in saved(fewer)["streams"]] == reported[:1]


def test_streams_in_another_order_with_other_proportions_continue(opened, raw, other) -> None:
    def mixed(*usages: tuple[Built, float]) -> StreamingTokenLoader:
        streams = [TokenStream(local=built.root, proportion=share) for built, share in usages]
        return opened(local=None, streams=streams, epoch_size=400)

    loader = mixed((raw, 0.5), (other, 0.5))
    taken(loader, 40)
    state = saved(loader)
    drawn = [stream["drawn"] for stream in state["streams"]]
    assert sum(drawn) == 160
    changed = mixed((other, 0.2), (raw, 0.8))
    with pytest.raises(ConfigMismatchError, match="streams"):
        changed.load_state_dict(state)
    changed.load_state_dict(state, allow_changes=["streams"])
    taken(changed, 1)
    assert [stream["before"] for stream in saved(changed)["streams"]] == drawn[::-1]


def test_streams_that_move_in_the_list_go_on_in_their_passes(opened, raw, other) -> None:
    """One comes second, first, then alone: no sequence of it comes again before all came."""
    came: list[int] = []
    state = None
    for datasets in ([other, raw], [raw, other], [raw]):
        streams = [TokenStream(local=built.root, proportion=1) for built in datasets]
        loader = opened(local=None, streams=streams, epoch_size=400)
        if state is not None:
            loader.load_state_dict(state, allow_changes=["streams"])
        came += [number for place, number in taken(loader, 45) if datasets[place] is raw]
        state = saved(loader)
    assert len(set(came)) == len(came) > 300
    assert {trace.sequence for trace in loader.trace(44)} == {*came[-4:]}
    again = opened(local=None, streams=streams, epoch_size=400)
    again.load_state_dict(state)
    assert not {*came} & {number for _, number in taken(again, 20)}


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ({"batch_size": 8}, {"global_batch": 12}, ["global_batch"]),
        ({"batch_size": 8}, {"global_batch": "0:8 100:16"}, ["global_batch"]),
        ({"global_batch": "0:8 200:16"}, {"global_batch": 4}, ["global_batch"]),
        (
            {"batch_size": 8},
            {"global_batch": 16, "sequence_length": "0:4 1000:8"},
            ["global_batch", "sequence_length"],
        ),
    ],
)
def test_steps_of_another_size_keep_what_came(opened, old, new, named) -> None:
    """Step numbers, trace, trace_document and plan describe what this epoch delivered."""
    loader = opened(**({"batch_size": None} | old), epoch_size=400)
    steps = [*sequences(loader), *sequences(loader, 4)]
    for sizes in (new, {"global_batch": 24, "sequence_length": new.get("sequence_length", 8)}):
        state = saved(loader)
        done = loader.step
        loader = opened(**sizes, batch_size=None, epoch_size=400)
        loader.load_state_dict(state, allow_changes=named)
        assert loader.step == done
        steps += sequences(loader, 3)
        state = saved(loader)
        loader.load_state_dict(state)
        assert saved(loader) == state
    came = steps[-loader.step :]
    plan = loader.plan()
    left = sequences(loader)
    assert len(loader) == loader.step == plan.steps == len(came + left)
    for number, delivered in enumerate(came + left):
        traces = loader.trace(number)
        assert {trace.sequence for trace in traces} == {*delivered}
        phase = next(each for each in plan.phases if number < each.step + each.steps)
        assert phase.global_batch == len(delivered)
        for span in traces[0].spans[:1]:
            visits = loader.trace_document(span.source, span.row)
            assert (number, traces[0].sequence) in [(each.step, each.sequence) for each in visits]
    assert plan.tokens == plan.phases[-1].stop_token - 400 * 8
    taken(loader, 1)
    assert loader.step == 1
    assert "past" not in saved(loader)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("shuffle_seed", 9176, 1),
        ("shuffle_block_size", 50, 51),
        ("num_canonical_nodes", 8, 4),
        ("shuffle", True, False),
    ],
)
def test_another_order_waits_for_the_next_epoch(opened, name, old, new) -> None:
    """Even if the change is allowed, it is refused within an epoch; a line names both values."""
    loader = opened(epoch_size=400, num_canonical_nodes=8)
    taken(loader, 3)
    changed = opened(epoch_size=400, **({"num_canonical_nodes": 8} | {name: new}))
    said = f"^{name}: the state has {old}, this loader {new}: it cannot change in the middle"
    with pytest.raises(ConfigMismatchError, match=said):
        changed.load_state_dict(saved(loader), allow_changes=[name])
    taken(loader)
    changed.load_state_dict(saved(loader), allow_changes=[name])
    assert (changed.epoch, changed.step) == (1, 0)


def test_a_changed_epoch_on_ranks_that_do_not_divide_its_past(load) -> None:
    loader = load(batch_size=8)
    (first,) = sequences(loader, 1)
    changed = load(batch_size=4, dp_world_size=3)
    changed.load_state_dict(saved(loader), allow_changes=["global_batch"])
    past = {"global_batch": "0:8", "sequence_length": "0:8", "until": 8}
    assert saved(changed)["past"] == past
    assert changed.step == 1
    assert sorted(trace.sequence for trace in changed.trace(0)) == sorted(first)
    assert changed.plan().phases[0].global_batch == 8
