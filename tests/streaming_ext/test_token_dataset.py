"""The dataset under every loader that training uses, and what it refuses."""

import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import (
    ConfigMismatchError,
    NotADatasetError,
    UsageError,
)
from streaming_ext.order.state import sealed
from streaming_ext.reading.prefetch import end_all
from streaming_ext.training.stock import streaming
from tests.streaming_ext.build import Built


def tokens_of(loader: Any) -> list[Any]:
    return [batch["tokens"].tolist() for batch in loader]


def test_it_is_a_streaming_dataset(open_raw, raw) -> None:
    dataset = open_raw()
    assert isinstance(dataset, streaming.StreamingDataset)
    assert dataset.size == dataset.num_samples == 585
    assert len(dataset) == 584
    stream = raw.streams["train"].reshape(-1, 8)
    assert dataset[7]["tokens"].tolist() == stream[7].tolist()
    assert dataset[-1]["tokens"].tolist() == stream[-1].tolist()
    assert [row["sequence_ids"].item() for row in dataset[3:6]] == [3, 4, 5]
    assert dataset[0]["tokens"].dtype == torch.int64
    with pytest.raises(IndexError):
        dataset[585]


def test_it_uses_no_named_shared_memory(open_raw, monkeypatch) -> None:
    from multiprocessing import shared_memory

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("named shared memory outlives a killed job")

    monkeypatch.setattr(shared_memory.SharedMemory, "__init__", refuse)
    for workers in (0, 1):
        dataset = open_raw()
        assert len(tokens_of(StreamingTokenLoader(dataset, num_workers=workers))) == 146
        assert len(tokens_of(DataLoader(dataset, batch_size=4, num_workers=workers))) == 146


def prefetching() -> set[threading.Thread]:
    """Threads that read ahead."""
    return {thread for thread in threading.enumerate() if "shardmill-prefetch" in thread.name}


class TestPlainLoader:
    @pytest.mark.parametrize(("workers", "persistent"), [(0, False), (3, False), (2, True)])
    def test_it_gives_the_batches_of_our_loader(self, open_raw, workers, persistent) -> None:
        ours = StreamingTokenLoader(open_raw())
        plain = DataLoader(
            open_raw(), batch_size=4, num_workers=workers, persistent_workers=persistent
        )
        assert len(plain) == len(ours) == 146
        for _ in range(3):
            assert tokens_of(plain) == tokens_of(ours)

    def test_an_epoch_broken_off_is_left_by_all_workers(self, open_raw) -> None:
        ours = StreamingTokenLoader(open_raw())
        dataset = open_raw()
        plain = DataLoader(dataset, batch_size=4, num_workers=2)
        for _ in zip(plain, range(3), strict=False):
            pass
        tokens_of(ours)
        assert dataset.next_epoch == 1
        assert tokens_of(plain) == tokens_of(ours)

    def test_seeding_torch_anew_each_epoch_repeats_nothing(self, open_raw) -> None:
        plain = DataLoader(open_raw(), batch_size=4, num_workers=2)
        epochs = []
        for _ in range(3):
            torch.manual_seed(0)
            epochs.append(tokens_of(plain))
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]

    def test_spawned_workers(self, open_raw) -> None:
        plain = DataLoader(
            open_raw(batch_size=100), batch_size=100, num_workers=1,
            multiprocessing_context="spawn", persistent_workers=True,
        )  # fmt: skip
        ours = StreamingTokenLoader(open_raw(batch_size=100))
        for _ in range(2):
            assert tokens_of(plain) == tokens_of(ours)

    def test_resume_without_workers(self, open_raw) -> None:
        expected = tokens_of(DataLoader(open_raw(), batch_size=4))
        dataset = open_raw()
        iterator = iter(DataLoader(dataset, batch_size=4))
        seen = [next(iterator)["tokens"].tolist() for _ in range(30)]
        again = open_raw()
        again.load_state_dict(dataset.state_dict())
        assert seen + tokens_of(DataLoader(again, batch_size=4, num_workers=2)) == expected

    def test_resume_with_workers_needs_the_count(self, open_raw) -> None:
        expected = tokens_of(DataLoader(open_raw(), batch_size=4))
        dataset = open_raw()
        iterator = iter(DataLoader(dataset, batch_size=4, num_workers=2))
        seen = [next(iterator)["tokens"].tolist() for _ in range(30)]
        with pytest.raises(UsageError, match="num_samples"):
            dataset.state_dict()
        again = open_raw()
        again.load_state_dict(dataset.state_dict(num_samples=120))
        assert seen + tokens_of(DataLoader(again, batch_size=4)) == expected

    def test_a_state_inside_a_step_is_refused(self, open_raw) -> None:
        dataset = open_raw()
        next(iter(dataset))
        with pytest.raises(UsageError, match="between two steps"):
            dataset.state_dict()

    def test_without_a_batch_size_it_does_not_guess(self, open_raw) -> None:
        with pytest.raises(UsageError, match="batch_size="):
            next(iter(open_raw(batch_size=None)))
        with pytest.raises(UsageError, match="batch_size="):
            StreamingTokenLoader(open_raw(batch_size=None))
        assert open_raw(batch_size=None)[3]["sequence_ids"] == 3


class TestStockLoader:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_resume_over_epochs(self, open_raw, workers) -> None:
        ours = StreamingTokenLoader(open_raw())
        expected = tokens_of(ours) + tokens_of(ours) + tokens_of(ours)
        settings = {"batch_size": 4, "num_workers": workers}
        loader = streaming.StreamingDataLoader(open_raw(), **settings)
        seen = tokens_of(loader)
        for batch in loader:
            seen.append(batch["tokens"].tolist())
            if len(seen) == 200:
                break
        state = loader.state_dict()
        again = streaming.StreamingDataLoader(open_raw(), **settings)
        again.load_state_dict(state)
        seen += tokens_of(again)
        assert len(seen) == 292
        state = again.state_dict()
        assert state["epoch"] == 1
        assert state["sample_in_epoch"] == 584
        last = streaming.StreamingDataLoader(open_raw(), **settings)
        last.load_state_dict(state)
        assert seen + tokens_of(last) == expected

    def test_its_count_of_ranks_must_be_ours(self, open_raw) -> None:
        loader = streaming.StreamingDataLoader(open_raw(dp_world_size=2), batch_size=4)
        next(iter(loader))
        with pytest.raises(UsageError, match="sees 1 ranks"):
            loader.state_dict()


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")
class TestStatefulLoader:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_resume(self, open_raw, workers) -> None:
        stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
        expected = tokens_of(DataLoader(open_raw(), batch_size=4))
        loader = stateful(open_raw(), batch_size=4, num_workers=workers)
        iterator = iter(loader)
        seen = [next(iterator)["tokens"].tolist() for _ in range(31)]
        state = loader.state_dict()
        again = stateful(open_raw(), batch_size=4, num_workers=workers)
        again.load_state_dict(state)
        assert seen + tokens_of(again) == expected

    @pytest.mark.parametrize("persistent", [False, True])
    def test_epochs_behind_each_other_and_behind_a_resume(self, open_raw, persistent) -> None:
        """States are saved with a worker that gave nothing yet, at an end, and twice in a row."""
        stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
        plain = StreamingTokenLoader(open_raw())
        epochs = [tokens_of(plain) for _ in range(4)]

        def opened() -> Any:
            return stateful(open_raw(), batch_size=4, num_workers=2, persistent_workers=persistent)

        loader = opened()
        assert tokens_of(loader) == epochs[0]
        seen = []
        for batch in loader:
            seen.append(batch["tokens"].tolist())
            state = loader.state_dict()
            break
        resumed = opened()
        resumed.load_state_dict(state)
        for batch in resumed:
            seen.append(batch["tokens"].tolist())
            state = resumed.state_dict()
            break
        again = opened()
        again.load_state_dict(state)
        assert seen + tokens_of(again) == epochs[1]
        assert tokens_of(again) == epochs[2]
        last = opened()
        last.load_state_dict(again.state_dict())
        rest = tokens_of(last)  # torchdata ends an epoch that had ended once more
        assert (rest or tokens_of(last)) == epochs[3]

    def test_a_workers_state_fits_that_worker_only(self, open_raw) -> None:
        dataset = open_raw()
        own = {"worker": {"worker": 1, "num_workers": 2, "yielded": 8}}
        state = sealed(dataset.state_dict() | own)
        with pytest.raises(ConfigMismatchError, match="worker 1 of 2"):
            dataset.load_state_dict(state)


class TestOurLoader:
    def test_a_dataset_is_sent_to_another_process(self, open_raw) -> None:
        dataset = pickle.loads(pickle.dumps(open_raw()))  # noqa: S301
        assert tokens_of(StreamingTokenLoader(dataset)) == tokens_of(
            StreamingTokenLoader(open_raw())
        )

    def test_a_closed_dataset_leaves_its_cache_alone(self, packed, tmp_path) -> None:
        others = prefetching()
        dataset = StreamingTokenDataset(remote=str(packed.root), local=tmp_path, batch_size=4,
                                        dp_rank=0, dp_world_size=1)  # fmt: skip
        batches = iter(StreamingTokenLoader(dataset))
        next(batches)
        dataset.close()
        before = sorted(tmp_path.rglob("*"))
        time.sleep(0.3)
        assert sorted(tmp_path.rglob("*")) == before
        assert not prefetching() - others
        assert len(list(batches)) == dataset.size // 4 - 1  # without reading ahead

    def test_what_reads_ahead_ends_before_the_interpreter(self, packed, tmp_path) -> None:
        """An iteration that is still open then: its threads may be in native code."""
        others = prefetching()
        dataset = StreamingTokenDataset(remote=str(packed.root), local=tmp_path, batch_size=4,
                                        dp_rank=0, dp_world_size=1, predownload=8)  # fmt: skip
        batches = iter(StreamingTokenLoader(dataset))
        next(batches)
        assert prefetching() - others
        end_all()
        assert not prefetching() - others
        assert len(list(batches)) == dataset.size // 4 - 1

    @pytest.mark.parametrize(
        "settings", [{"num_workers": -1}, {"prefetch_factor": 0}, {"pin_memory": True}]
    )
    def test_senseless_settings_are_refused(self, open_raw, settings) -> None:
        if torch.cuda.is_available() and "pin_memory" in settings:
            pytest.skip("memory can be pinned here")
        with pytest.raises(UsageError):
            StreamingTokenLoader(open_raw(), **settings)

    def test_wide_ids(self, tmp_path) -> None:
        from tests.streaming_ext.build import build

        documents = [[("train", [70_000, 2**32 - 1, 5])]]
        built = build(tmp_path / "wide", documents, vocab_size=100_000, sequence_length=4)
        for workers in (0, 1):
            dataset = StreamingTokenDataset(
                local=built.root, batch_size=1, dp_rank=0, dp_world_size=1
            )
            (batch,) = StreamingTokenLoader(dataset, num_workers=workers)
            assert batch["tokens"].tolist() == [[70_000, 2**32 - 1, 5, 99]]


class TestArguments:
    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"local": None}, "either streams"),
            ({"streams": [TokenStream(local="x")]}, "not both"),
            ({"remote": "s3://bucket/data", "local": None}, "give local= a folder"),
            ({"shuffle_block_size": 0}, "shuffle_block_size"),
            ({"sequence_length": -8}, "sequence_length"),
            ({"sequence_length": 10_000}, "less than one sequence"),
            ({"batch_size": 1000}, "less than one global batch of 1000"),
            ({"cache_limit": "1gx"}, "cache_limit"),
            ({"cache_limit": "1kb", "remote": "RAW"}, "cache_limit"),
            ({"dp_world_size": 0}, "dp_rank"),
            ({"predownload": 0}, "`predownload` must be at least 1, got 0"),
            ({"predownload": 2.5}, r"`predownload` must be a whole number .*, got 2\.5"),
        ],
    )
    def test_senseless_ones_are_refused(self, open_raw, raw, tmp_path, settings, words) -> None:
        if settings.get("remote") == "RAW":
            settings = settings | {"remote": str(raw.root), "local": tmp_path}
        with pytest.raises(UsageError, match=words):
            open_raw(**settings)

    def test_no_dataset_there(self, open_raw, tmp_path) -> None:
        with pytest.raises(NotADatasetError):
            open_raw(local=tmp_path)

    def test_a_mounted_remote_is_read_in_place(self, raw: Built, open_raw) -> None:
        expected = tokens_of(StreamingTokenLoader(open_raw()))
        for url in (str(raw.root), f"file://{raw.root}"):
            dataset = open_raw(remote=url, local=None)
            assert dataset.reader.caches[0].in_place
            assert tokens_of(StreamingTokenLoader(dataset)) == expected

    def test_batches_only_extras_need_whole_batches(self, open_raw) -> None:
        with pytest.raises(UsageError, match="whole batches"):
            next(iter(open_raw(extras=["cu_seqlens"])))


@pytest.mark.parametrize("made", [
    pytest.param(StreamingTokenLoader, id="loader"),
    pytest.param(lambda dataset: DataLoader(dataset, batch_size=4), id="dataset"),
])  # fmt: skip
def test_an_older_iteration_refuses_to_go_on(open_raw: Any, made: Callable[..., Any]) -> None:
    """It took steps away from the newer one, which the state counts as received."""
    loader = made(open_raw())
    older, newer = iter(loader), iter(loader)
    next(older)
    first = next(newer)
    assert next(newer)["tokens"].tolist() != first["tokens"].tolist()
    state = loader.state_dict() if made is StreamingTokenLoader else None
    with pytest.raises(UsageError, match="A newer iteration of this (loader|dataset) began"):
        next(older)
    if state is not None:
        assert loader.state_dict() == state
    assert len(list(newer)) == (143 if made is StreamingTokenLoader else 144)
