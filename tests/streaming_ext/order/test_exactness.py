"""Coverage, elasticity and resume on complete small epochs.

test_brute_force.py compares random settings, ranks, workers and states; test_rank_slices.py and
training/test_blocks.py prove for any number of ranks and workers how steps are dealt out.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from tests.streaming_ext.build import Built, build, numbered_parts, some_documents

Open = Callable[..., StreamingTokenDataset]


class TestCoverage:
    @pytest.mark.parametrize(
        ("length", "shuffle"), [(1, True), (7, False), (11, True), (100, False), (1024, True)]
    )
    def test_every_token_of_the_stream_comes_once(self, raw, open_raw, length, shuffle) -> None:
        dataset = open_raw(sequence_length=length, batch_size=1, shuffle=shuffle)
        batches = list(StreamingTokenLoader(dataset))
        ids = torch.cat([batch["sequence_ids"] for batch in batches])
        tokens = torch.cat([batch["tokens"] for batch in batches])
        count = 4680 // length
        assert sorted(ids.tolist()) == list(range(count))
        stream = raw.streams["train"][: count * length].astype(np.int64).reshape(count, length)
        assert (tokens[torch.argsort(ids)].numpy() == stream).all()
        assert (ids[:-1] < ids[1:]).all() != shuffle or count < 3

    def test_epochs_differ_and_all_cover(self, open_raw) -> None:
        loader = StreamingTokenLoader(open_raw(batch_size=1))
        epochs = [torch.cat([batch["sequence_ids"] for batch in loader]).tolist() for _ in range(3)]
        assert len({tuple(epoch) for epoch in epochs}) == 3
        assert all(sorted(epoch) == list(range(585)) for epoch in epochs)


class TestResume:
    def test_from_every_step_the_rest_is_the_same(self, open_raw) -> None:
        settings = {"batch_size": 40, "shuffle_block_size": 30}
        loader = StreamingTokenLoader(open_raw(**settings))
        states, batches = [loader.state_dict()], []
        for _ in range(3):
            for batch in loader:
                batches.append((loader.epoch, batch["tokens"].tolist()))
                states.append(loader.state_dict())
        assert len(batches) == 42
        for number, state in enumerate(states):
            again = StreamingTokenLoader(open_raw(**settings))
            again.load_state_dict(state)
            assert again.state_dict() == state or number % 14 == 0
            rest = []
            while len(rest) < 42 - number:
                rest += [(again.epoch, batch["tokens"].tolist()) for batch in again]
            assert rest[: 42 - number] == batches[number:]

    def test_an_iteration_broken_off_goes_on(self, open_raw) -> None:
        expected = [b["tokens"].tolist() for b in StreamingTokenLoader(open_raw())]
        loader = StreamingTokenLoader(open_raw(), num_workers=2)
        seen = []
        for batch in loader:
            seen.append(batch["tokens"].tolist())
            if len(seen) == 9:
                break
        seen += [batch["tokens"].tolist() for batch in loader]
        assert seen == expected

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
        ],
    )
    def test_another_order_is_refused_by_name(self, open_raw, field, change) -> None:
        state = StreamingTokenLoader(open_raw()).state_dict()
        with pytest.raises(ConfigMismatchError, match=rf"\n  {field}: the state has"):
            StreamingTokenLoader(open_raw(**change)).load_state_dict(state)

    def test_a_state_is_json_and_left_as_it_is(self, open_raw) -> None:
        import json

        loader = StreamingTokenLoader(open_raw())
        next(iter(loader))
        state = loader.state_dict()
        text = json.dumps(state)
        StreamingTokenLoader(open_raw()).load_state_dict(json.loads(text))
        assert json.dumps(state) == text

    def test_a_change_of_what_is_no_setting_is_refused(self, open_raw) -> None:
        loader = StreamingTokenLoader(open_raw())
        with pytest.raises(UsageError, match="batchsize"):
            loader.load_state_dict(loader.state_dict(), allow_changes=["batchsize"])

    @pytest.mark.parametrize("state", [{}, {"epoch": 0, "sample_in_epoch": 3}, {"version": 2}])
    def test_foreign_states_are_refused(self, open_raw, state) -> None:
        with pytest.raises(ConfigMismatchError, match="version|newer"):
            StreamingTokenLoader(open_raw()).load_state_dict(state)


class TestMixture:
    def open(self, raw: Built, other: Built, usages: dict[str, float], **settings: Any) -> Any:
        roots = {"raw": raw.root, "other": other.root}
        streams = [TokenStream(local=roots[name], proportion=p) for name, p in usages.items()]
        usual = {"batch_size": 8, "shuffle": True, "num_canonical_nodes": 4, "dp_rank": 0,
                 "dp_world_size": 1, "extras": ["sequence_ids"]}  # fmt: skip
        return StreamingTokenDataset(streams=streams, **(usual | settings))

    @pytest.fixture
    def other(self, tmp_path) -> Built:
        documents = [[95, 96, 97, 98, 94, 93, 92]] * 400  # reported from others by their ids
        return build(tmp_path / "other", numbered_parts(documents), compression="none")

    def test_a_changed_mixture_continues_from_each_stream(self, raw, other) -> None:
        loader = StreamingTokenLoader(self.open(raw, other, {"raw": 0.5, "other": 0.5}))
        iterator = iter(loader)
        for _ in range(40):
            next(iterator)
        state = loader.state_dict()
        drawn = [stream["drawn"] for stream in state["streams"]]
        assert sum(drawn) == 320
        changed = StreamingTokenLoader(self.open(raw, other, {"other": 0.2, "raw": 0.8}))
        with pytest.raises(ConfigMismatchError, match="streams"):
            changed.load_state_dict(state)
        changed.load_state_dict(state, allow_changes=["streams"])
        next(iter(changed))
        again = changed.state_dict()
        assert [stream["before"] for stream in again["streams"]] == drawn[::-1]

    def test_tokenizers_that_differ_are_refused(self, raw, tmp_path) -> None:
        other = build(tmp_path / "o", numbered_parts(some_documents(50)), fingerprint="f1")
        with pytest.raises(UsageError, match="different tokenizers"):
            self.open(raw, other, {"raw": 1, "other": 1})


class TestHoldout:
    @pytest.mark.parametrize(("workers", "worlds"), [(0, (1, 2, 3, 8)), (2, (2,))])
    def test_every_sequence_counts_once_on_any_ranks(self, raw, open_raw, workers, worlds) -> None:
        expected = raw.streams["holdout"].astype(np.int64).reshape(-1, 8).tolist()
        settings = {"split": "holdout", "shuffle": False, "batch_size": 3,
                    "extras": ["sequence_ids", "targets"]}  # fmt: skip
        for ranks in worlds:
            loaders = [
                StreamingTokenLoader(
                    open_raw(dp_rank=rank, dp_world_size=ranks, **settings), num_workers=workers
                )
                for rank in range(ranks)
            ]
            for _ in range(2):  # each evaluation is complete
                of_ranks = [list(loader) for loader in loaders]
                assert {len(own) for own in of_ranks} == {-(-len(expected) // (3 * ranks))}
                rows = []
                for batch in chain.from_iterable(of_ranks):
                    real = batch["real"]
                    assert (batch["targets"][~real] == -100).all()
                    ids, tokens = batch["sequence_ids"][real], batch["tokens"][real]
                    rows += zip(ids.tolist(), tokens.tolist(), strict=True)
                assert sorted(rows) == list(enumerate(expected))

    def test_an_evaluation_broken_off_starts_again(self, open_raw) -> None:
        loader = StreamingTokenLoader(open_raw(split="holdout", shuffle=False))
        first = next(iter(loader))["sequence_ids"].tolist()
        assert next(iter(loader))["sequence_ids"].tolist() == first

    @pytest.mark.parametrize("method", ["random", "device_per_stream"])
    def test_several_streams_hold_every_sequence_once_an_epoch(
        self, raw, open_raw, tmp_path, method
    ) -> None:
        """Also where streams make no whole rows, or less than one; fillers are not counted."""
        small = build(tmp_path / "s", numbered_parts(some_documents(20)), compression="none")
        streams = [TokenStream(local=built.root) for built in (raw, small)]
        for split, ranks in (("holdout", 1), ("holdout", 4), ("train", 2)):
            for shuffle in (False, True):
                rows: list[list[tuple[int, int]]] = []
                for rank in range(ranks):
                    dataset = open_raw(
                        local=None, streams=streams, split=split, shuffle=shuffle, batch_size=3,
                        dp_rank=rank, dp_world_size=ranks, batching_method=method, drop_last=False,
                        extras=["sequence_ids", "stream_ids", "targets", "domain_ids"],
                        domain_by="folder",
                    )  # fmt: skip
                    loader, own = StreamingTokenLoader(dataset), []
                    for batch in loader:
                        real = batch["real"]
                        assert (batch["targets"][~real] == -100).all()
                        assert (batch["domain_ids"][~real] == -1).all()
                        ids = zip(batch["stream_ids"], batch["sequence_ids"], strict=True)
                        own.append([tuple(map(int, each)) for each in ids])
                    rows += own
                    usages = loader.achieved()
                sizes = [len(built.streams[split]) // 8 for built in (raw, small)]
                everything = [(s, n) for s, size in enumerate(sizes) for n in range(size)]
                assert sorted(r for step in rows for r in step if r[1] >= 0) == everything
                assert [usage.sequences for usage in usages] == sizes
                for usage, built in zip(usages, (raw, small), strict=True):
                    counted = sum(usage.tokens_by_domain.values())
                    assert counted == built.manifest.splits[split].tokens

    def test_training_to_the_last_sequence_goes_on_with_the_next_epoch(self, open_raw) -> None:
        loader = StreamingTokenLoader(open_raw(drop_last=False))
        epochs = [
            [n for b in loader for n in b["sequence_ids"][b["real"]].tolist()] for _ in range(3)
        ]
        assert all(sorted(epoch) == list(range(585)) for epoch in epochs)
        assert epochs[0] != epochs[1] != epochs[2]
        assert loader.epoch == 2
        plain = open_raw(drop_last=False)
        assert [[row["sequence_ids"] for row in plain if row["real"]] for _ in "ab"] == epochs[:2]
        first = next(iter(loader))["sequence_ids"].tolist()
        assert next(iter(loader))["sequence_ids"].tolist() == first
        assert loader.epoch == 3
