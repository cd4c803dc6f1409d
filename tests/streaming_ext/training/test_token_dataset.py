"""The dataset under every loader that training uses, and what it refuses."""

import threading
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from streaming_ext import StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import UsageError
from streaming_ext.reading.prefetch import end_all
from streaming_ext.training import messages
from streaming_ext.training.stock import streaming
from tests.streaming_ext.build import build
from tests.streaming_ext.conftest import tokens_of


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
    for number in (585, -586):
        with pytest.raises(IndexError, match="index out of range"):
            dataset[number]


def test_it_uses_no_named_shared_memory(open_raw, monkeypatch) -> None:
    from multiprocessing import shared_memory

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("named shared memory outlives a killed job")

    monkeypatch.setattr(shared_memory.SharedMemory, "__init__", refuse)
    for workers in (0, 1):
        dataset = open_raw()
        assert len(tokens_of(StreamingTokenLoader(dataset, num_workers=workers))) == 146
        assert len(tokens_of(DataLoader(dataset, batch_size=4, num_workers=workers))) == 146


def test_batches_are_made_on_the_cpu_whatever_the_default_device(open_raw) -> None:
    expected = tokens_of(open_raw())
    with torch.device("meta"):
        dataset = open_raw()
        assert tokens_of(dataset) == expected
        start = dataset.start_cursor()
        messages.Messages(dataset.batch_reader, start, num_workers=1, slots=1, inherited=False)


def prefetching() -> set[threading.Thread]:
    """Return the threads that read ahead."""
    return {thread for thread in threading.enumerate() if "shardmill-prefetch" in thread.name}


class TestPlainLoader:
    @pytest.mark.parametrize(("workers", "persistent"), [(0, False), (3, False), (2, True)])
    def test_it_gives_the_batches_of_our_loader(self, open_raw, load, workers, persistent) -> None:
        ours = load()
        plain = DataLoader(
            open_raw(), batch_size=4, num_workers=workers, persistent_workers=persistent
        )
        assert len(plain) == len(ours) == 146
        for _ in range(3):
            assert tokens_of(plain) == tokens_of(ours)

    def test_an_epoch_broken_off_is_left_by_all_workers(self, open_raw, load) -> None:
        ours = load()
        dataset = open_raw()
        plain = DataLoader(dataset, batch_size=4, num_workers=2)
        list(islice(plain, 3))
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

    @pytest.mark.parametrize("workers", [0, 2])
    def test_resume(self, open_raw, workers) -> None:
        """With workers, the owner of the loader must pass the number of sequences received."""
        expected = tokens_of(DataLoader(open_raw(), batch_size=4))
        dataset = open_raw()
        started = iter(DataLoader(dataset, batch_size=4, num_workers=workers))
        seen = tokens_of(islice(started, 30))
        if workers:
            with pytest.raises(UsageError, match="num_samples"):
                dataset.state_dict()
        again = open_raw()
        again.load_state_dict(dataset.state_dict(num_samples=120 if workers else None))
        assert seen + tokens_of(DataLoader(again, batch_size=4, num_workers=2)) == expected

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
    def test_resume_over_epochs(self, open_raw, load, workers) -> None:
        ours = load()
        expected = [tokens for _ in range(3) for tokens in tokens_of(ours)]

        def resumed(state: Any = None) -> Any:
            loader = streaming.StreamingDataLoader(open_raw(), batch_size=4, num_workers=workers)
            if state is not None:
                loader.load_state_dict(state)
            return loader

        loader = resumed()
        seen = tokens_of(loader) + tokens_of(islice(loader, 54))
        loader = resumed(loader.state_dict())
        seen += tokens_of(loader)
        assert len(seen) == 292
        state = loader.state_dict()
        assert state["epoch"] == 1
        assert state["sample_in_epoch"] == 584
        assert seen + tokens_of(resumed(state)) == expected

    def test_its_count_of_ranks_must_be_ours(self, open_raw) -> None:
        loader = streaming.StreamingDataLoader(open_raw(dp_world_size=2), batch_size=4)
        next(iter(loader))
        with pytest.raises(UsageError, match="sees 1 ranks"):
            loader.state_dict()


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")
class TestStatefulLoader:
    @staticmethod
    def resumed(dataset: Any, state: Any = None, *, workers: int = 0) -> Any:
        stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
        loader = stateful(dataset, batch_size=8, num_workers=workers)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    def test_epochs_behind_each_other_and_behind_resumes(self, open_raw, load) -> None:
        """States are saved at a beginning, in the middle, and at an end."""
        ours = load(batch_size=8)
        epochs = [tokens_of(ours) for _ in range(4)]
        loader = self.resumed(open_raw(batch_size=8))
        assert tokens_of(loader) == epochs[0]
        seen = []
        for steps in (1, 1, 30):
            seen += tokens_of(islice(loader, steps))
            loader = self.resumed(open_raw(batch_size=8), loader.state_dict())
        assert seen + tokens_of(loader) == epochs[1]
        assert tokens_of(loader) == epochs[2]
        last = self.resumed(open_raw(batch_size=8), loader.state_dict())
        rest = tokens_of(last)  # torchdata ends a finished epoch once more
        assert (rest or tokens_of(last)) == epochs[3]

    def test_workers_of_it_are_refused(self, open_raw) -> None:
        with pytest.raises(UsageError, match="use StreamingTokenLoader"):
            next(iter(self.resumed(open_raw(batch_size=8), workers=2)))


class TestOurLoader:
    @pytest.mark.parametrize("ended_by", ["its dataset", "the interpreter's end"])
    def test_what_reads_ahead_ends(self, open_cached, ended_by) -> None:
        """This includes an iteration that is still open, whose threads may be in native code."""
        others = prefetching()
        dataset = open_cached(predownload=8)
        batches = iter(StreamingTokenLoader(dataset))
        next(batches)
        assert prefetching() - others
        if ended_by == "its dataset":
            dataset.close()
        else:
            end_all()
        assert not prefetching() - others
        assert len(list(batches)) == dataset.size // 4 - 1  # without reading ahead

    def test_workers_take_blocks_of_steps_in_turn(self, load, monkeypatch) -> None:
        settings = {"batch_size": None, "global_batch": "0:4 900:8 2000:12"}
        expected = tokens_of(load(**settings))
        monkeypatch.setattr(messages, "MESSAGE_BYTES", 200)  # one to three steps per message
        for workers in (1, 2, 3):
            loader = load(**settings, num_workers=workers)
            assert tokens_of(loader) == expected
        assert {len(batch) for batch in expected} == {4, 8, 12}

    @pytest.mark.parametrize(
        "settings", [{"num_workers": -1}, {"prefetch_factor": 0}, {"pin_memory": True}]
    )
    def test_senseless_settings_are_refused(self, open_raw, settings) -> None:
        if torch.cuda.is_available() and "pin_memory" in settings:
            pytest.skip("memory can be pinned here")
        with pytest.raises(UsageError):
            StreamingTokenLoader(open_raw(), **settings)

    def test_wide_ids(self, open_raw, tmp_path) -> None:
        documents = [[("train", [70_000, 2**32 - 1, 5])]]
        built = build(tmp_path / "wide", documents, vocab_size=100_000, sequence_length=4)
        for workers in (0, 1):
            dataset = open_raw(local=built.root, batch_size=1)
            loader = StreamingTokenLoader(dataset, num_workers=workers)
            assert tokens_of(loader) == [[[70_000, 2**32 - 1, 5, 99]]]


def test_a_mounted_remote_is_read_in_place(raw, open_raw) -> None:
    expected = tokens_of(open_raw())
    for url in (str(raw.root), f"file://{raw.root}"):
        dataset = open_raw(remote=url, local=None)
        assert dataset.reader.caches[0].in_place
        assert tokens_of(dataset) == expected


@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        ("raw", {"local": "raw"}),
        ("raw", {"local": None, "remote": "raw"}),
        ("packed", {"local": "packed"}),
        ("packed", {"local": "cache", "remote": "packed", "packing": "best_fit"}),
    ],
)
def test_relative_paths_are_those_of_its_construction(
    dataset, settings, copy, open_raw, request, tmp_path, monkeypatch
) -> None:
    copy(request.getfixturevalue(dataset)).rename(tmp_path / dataset)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    opened = open_raw(**settings)
    own = {name: settings.pop(name, None) for name in ("local", "remote")}
    stream = TokenStream(**own)
    monkeypatch.chdir("elsewhere")
    found = tokens_of(StreamingTokenLoader(opened))
    assert len(found) > 100
    assert StreamingTokenLoader(opened).trace(0)
    again = open_raw(**settings, local=None, streams=[stream])
    spawned = StreamingTokenLoader(again, num_workers=1, multiprocessing_context="spawn")
    assert tokens_of(spawned) == found
    assert not list(Path.cwd().iterdir())


def test_batches_only_extras_need_whole_batches(open_raw) -> None:
    with pytest.raises(UsageError, match="whole batches"):
        next(iter(open_raw(extras=["cu_seqlens"])))


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(StreamingTokenLoader, id="loader"),
        pytest.param(lambda dataset: DataLoader(dataset, batch_size=4), id="dataset"),
    ],
)
def test_an_older_iteration_refuses_to_go_on(open_raw, made) -> None:
    """It would take steps from the newer one, which the state counts as received."""
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


def test_what_dataset_and_loader_say_of_themselves(raw, open_raw) -> None:
    dataset = open_raw(dp_rank=1, dp_world_size=2)
    shown = (
        f"StreamingTokenDataset({str(raw.root)!r}, split='train', 585 sequences of 8 tokens, "
        "rank 1 of 2, batch_size=4)"
    )
    assert repr(dataset) == shown
    loader = StreamingTokenLoader(dataset, num_workers=2)
    assert repr(loader) == f"StreamingTokenLoader({shown}, 73 steps per epoch, num_workers=2)"


def test_a_dataset_without_its_tokenizer(open_raw) -> None:
    with pytest.raises(UsageError, match="does not hold its tokenizer"):
        _ = open_raw().tokenizer
