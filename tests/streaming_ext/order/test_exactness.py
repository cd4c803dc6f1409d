"""Coverage, elasticity and resume on complete small epochs.

test_brute_force.py compares random settings, ranks, workers and states; test_epoch_plan.py checks
how steps are split, for any number of ranks.
"""

import pytest

from streaming_ext import TokenStream
from streaming_ext.base.arrays import ceil_div
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from tests.streaming_ext.build import Built, build_some
from tests.streaming_ext.loading import sequences


class TestResume:
    def test_from_every_step_the_rest_is_the_same(self, load) -> None:
        settings = {"batch_size": 40, "shuffle_block_size": 30}
        loader = load(**settings)
        states, batches = [loader.state_dict()], []
        for _ in range(3):
            for batch in loader:
                batches.append((loader.epoch, batch["tokens"].tolist()))
                states.append(loader.state_dict())
        assert len(batches) == 42
        for number, state in enumerate(states):
            again = load(**settings)
            again.load_state_dict(state)
            assert again.state_dict() == state or number % 14 == 0
            rest = []
            while len(rest) < 42 - number:
                rest += [(again.epoch, batch["tokens"].tolist()) for batch in again]
            assert rest[: 42 - number] == batches[number:]

    def test_an_iteration_broken_off_goes_on(self, load) -> None:
        loader = load(num_workers=2)
        assert sequences(loader, 9) + sequences(loader) == sequences(load())

    @pytest.mark.parametrize(
        ("field", "change"),
        [
            ("shuffle_seed", {"shuffle_seed": 3}),
            ("shuffle_block_size", {"shuffle_block_size": 51}),
            ("shuffle", {"shuffle": False, "num_canonical_nodes": 8}),
            ("num_canonical_nodes", {"num_canonical_nodes": 4}),
            ("epoch_size", {"epoch_size": 500}),
            ("sequence_length", {"sequence_length": 16}),
            ("global_batch", {"batch_size": 8}),
            ("split", {"split": "holdout"}),
            ("drop_last", {"drop_last": False}),
            ("packing", {"packing": "best_fit"}),
            ("document_multiple", {"packing": "best_fit", "document_multiple": 8}),
        ],
    )
    def test_another_order_is_refused_by_name(self, load, field, change) -> None:
        with pytest.raises(ConfigMismatchError, match=rf"\n  {field}: the state has"):
            load(**change).load_state_dict(load().state_dict())

    def test_a_state_names_no_feature_that_is_not_used(self, load) -> None:
        state = load().state_dict()
        own = {"version", "epoch", "sample_in_epoch", "order", "streams", "checksum"}
        of_order = {"split", "sequence_length", "global_batch", "drop_last", "epoch_size"}
        of_shuffle = {"shuffle", "shuffle_seed", "shuffle_block_size", "num_canonical_nodes"}
        assert state.keys() == own
        assert state["order"].keys() == of_order | of_shuffle
        assert state["streams"][0].keys() == {"fingerprint", "choose", "before", "drawn"}

    def test_what_is_no_state_or_no_setting_is_refused(self, load) -> None:
        for state in ({}, {"epoch": 0, "sample_in_epoch": 3}, {"version": 2}):
            with pytest.raises(ConfigMismatchError, match="version|newer"):
                load().load_state_dict(state)
        for state in (None, [1], "x"):
            with pytest.raises(ConfigMismatchError, match=f"of type {type(state).__name__}; "):
                load().load_state_dict(state)
        for named in (["batchsize"], "batchsize"):
            with pytest.raises(UsageError, match="names batchsize; "):
                load().load_state_dict(load().state_dict(), allow_changes=named)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Built:
    root = tmp_path_factory.mktemp("small") / "dataset"
    return build_some(root, 20)


@pytest.mark.parametrize(
    ("split", "ranks", "workers", "streams", "method"),
    [
        ("holdout", 1, 0, 1, "random"),
        ("holdout", 3, 0, 1, "random"),
        ("holdout", 8, 0, 1, "random"),
        ("holdout", 2, 2, 1, "random"),
        *(
            (split, ranks, 0, 2, method)
            for split, ranks in (("holdout", 1), ("holdout", 4), ("train", 2))
            for method in ("random", "device_per_stream")
        ),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_sequence_counts_once_an_epoch(
    raw, small, load, split, ranks, workers, streams, method, shuffle
) -> None:
    """This holds even if streams make no whole rows, or less than one; fillers do not count."""
    datasets = (raw, small)[:streams]
    rows, lengths = [], set()
    for rank in range(ranks):
        loader = load(
            local=None,
            streams=[TokenStream(local=built.root) for built in datasets],
            split=split,
            shuffle=shuffle,
            batch_size=3,
            dp_rank=rank,
            dp_world_size=ranks,
            drop_last=False,
            batching_method=method,
            num_workers=workers,
            domain_by="folder",
            extras=["sequence_ids", "stream_ids", "targets", "domain_ids"],
        )
        batches = list(loader)
        lengths.add(len(batches))
        for batch in batches:
            real = batch["real"]
            assert (batch["targets"][~real] == -100).all()
            assert (batch["domain_ids"][~real] == -1).all()
            held = [batch[name][real].tolist() for name in ("stream_ids", "sequence_ids", "tokens")]
            rows += zip(*held, strict=True)
    expected = [
        (stream, number, row)
        for stream, built in enumerate(datasets)
        for number, row in enumerate(built.streams[split].reshape(-1, 8).tolist())
    ]
    assert sorted(rows) == expected
    assert len(lengths) == 1  # otherwise ranks would wait for each other
    assert streams > 1 or lengths == {ceil_div(len(expected), 3 * ranks)}
    for usage, built in zip(loader.achieved(), datasets, strict=True):
        assert usage.sequences == len(built.streams[split]) // 8
        assert sum(usage.tokens_by_domain.values()) == built.manifest.splits[split].tokens


def test_an_evaluation_broken_off_starts_again(load) -> None:
    loader = load(split="holdout", shuffle=False)
    first = sequences(loader, 1)
    whole = sequences(loader)
    assert whole[:1] == first
    assert sequences(loader) == whole


def test_training_to_the_last_sequence_goes_on_with_the_next_epoch(open_raw, load) -> None:
    loader = load(drop_last=False)
    epochs = [[n for b in loader for n in b["sequence_ids"][b["real"]].tolist()] for _ in range(3)]
    assert all(sorted(epoch) == list(range(585)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert (loader.epoch, loader.step) == (2, len(loader))  # the last step is short
    plain = open_raw(drop_last=False)
    assert [[row["sequence_ids"] for row in plain if row["real"]] for _ in "ab"] == epochs[:2]
    assert sequences(loader, 1) == sequences(loader, 1)
    assert loader.epoch == 3
