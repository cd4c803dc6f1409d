"""The samples of each step: examples of epochraft's tutorial, and rows by hand."""

import inspect
import os
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from streaming_ext.base.errors import ConfigMismatchError, UsageError, WorkerDiedError
from streaming_ext.transforms import CheckpointableDataset, interleave_datasets
from tests.streaming_ext.transforms.chains import NUMBERED, samples_of, subset_of

Chain = CheckpointableDataset
GREETINGS = [{"text": text} for text in ("Hello", "Hallo", "Salut", "Ciao")]


def test_pad_fills_up_and_refuses_what_is_longer() -> None:
    dataset = Chain.from_sequence([{"input_ids": [10, 11, 12]}, {"input_ids": [*range(20, 27)]}])
    padded = samples_of(
        dataset.map(lambda s: s | {"labels": s["input_ids"]}).pad(
            {"input_ids": 0, "labels": -100}, 7
        )
    )
    assert padded[0] == {
        "input_ids": [10, 11, 12, 0, 0, 0, 0],
        "labels": [10, 11, 12, -100, -100, -100, -100],
    }
    with pytest.raises(UsageError, match="'input_ids' of a sample has 7 tokens"):
        samples_of(dataset.pad({"input_ids": 0}, 6))


def test_interleave_keeps_to_the_weights_at_any_time() -> None:
    one, two = (Chain.from_sequence([{"text": text}], repeat=True) for text in "HK")
    mixed = interleave_datasets([one, two], weights=[1.5, 1]).take(10)
    assert "".join(sample["text"] for sample in mixed) == "HKHKHHKHKH"


def test_the_first_epoch_is_in_epochraft_s_order() -> None:
    dataset = Chain.from_sequence(GREETINGS, shuffle=True)
    assert [sample["text"] for sample in dataset] == ["Salut", "Hallo", "Ciao", "Hello"]


def test_a_pass_that_another_one_overtakes_in_the_cache() -> None:
    dataset = (
        Chain.from_sequence(NUMBERED)
        .parallel_map(dict, executor_type="thread", max_workers=2, ordered=False)
        .cache()
    )
    first = iter(dataset)
    first_ids = [next(first)["id"] for _ in range(3)]
    both = [sample["id"] for sample in dataset], first_ids + [sample["id"] for sample in first]
    assert both[0] == both[1] != []
    assert sorted(both[0]) == list(range(len(NUMBERED)))


def test_a_state_that_is_refused_leaves_the_pass_where_it_is() -> None:
    dataset = Chain.from_sequence(NUMBERED).parallel_map(dict, executor_type="thread")
    with dataset.iter() as samples:
        next(samples)
        with pytest.raises(ConfigMismatchError, match="this one is"):
            samples.load_state_dict(dataset.take(3).iter().state_dict())
        assert [sample["id"] for sample in samples] == list(range(1, len(NUMBERED)))


def crew(**settings: Any) -> Callable[[Chain, Callable[..., Any]], Chain]:
    return lambda dataset, function: dataset.parallel_map(function, max_workers=1, **settings)


@pytest.mark.parametrize(
    "mapped",
    [
        Chain.map,
        crew(executor_type="process"),
        crew(executor_type="thread"),
        crew(executor_type="thread", ordered=False),
    ],
)
@pytest.mark.parametrize("behind", [lambda d: d, lambda d: d.shuffle(3).repeat(2)])
def test_a_pass_that_failed_resumes_from_its_state(mapped, behind, tmp_path) -> None:
    """No sample comes twice, and none is lost."""
    mark = tmp_path / "well"

    def function(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 5 and not mark.exists():
            raise OSError("the network is gone")
        return sample

    dataset = behind(mapped(Chain.from_sequence(NUMBERED), function))
    found = []
    with dataset.iter() as samples:
        with pytest.raises(OSError, match="the network is gone"):
            found.extend(sample["id"] for sample in samples)
        with pytest.raises(UsageError, match=r"ended with an error \(OSError\).*in another one"):
            next(samples)
        state = samples.state_dict()
    mark.touch()
    found.extend(sample["id"] for sample in dataset.iter(state))
    assert found == [sample["id"] for sample in dataset]


def test_a_worker_process_that_dies_is_an_error() -> None:
    dataset = Chain.from_sequence(NUMBERED).parallel_map(lambda _: os._exit(3), max_workers=1)
    with pytest.raises(WorkerDiedError, match="A worker process died"):
        list(dataset)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda d: d.take(-1), "`max_count` must be at least 0, got -1"),
        (lambda d: d.stride(3, 3), r"`offset` must be a whole number up to 2, got 3"),
        (lambda d: d.shuffle(0), "`buffer_size` must be at least 1"),
        (lambda d: interleave_datasets([d], [0]), "`weights` must be"),
        (
            lambda d: interleave_datasets([d, d], chunk_size=0),
            "`chunk_size` must be at least 1, got 0",
        ),
        (lambda d: list(d.map(lambda _: None)), r"map\(\) returned None"),
        (
            lambda d: list(d.concat_chunk(4, ["labels"])),
            "no column 'labels'; it has 'id', 'input_ids'",
        ),
        (lambda d: list(d.take(0).repeat()), "would never end"),
        (lambda _: list(Chain.from_sequence([], repeat=True)), "without a sample cannot repeat"),
        (lambda _: list(Chain.from_iterable([], repeat=True)), "without a sample cannot repeat"),
        (lambda d: list(Chain.from_iterable(iter(NUMBERED))), "is used up by reading it"),
        (lambda d: list(d.parallel_map(dict, executor_type="cpu")), "executor_type must be"),
    ],
)
def test_wrong_usage(wrong, message) -> None:
    with pytest.raises(UsageError, match=message):
        wrong(Chain.from_sequence(NUMBERED))  # type: ignore[operator]


WORDS = {
    "iter": "state_dict",
    "from_sequence": "sequence repeat shuffle shuffle_seed",
    "from_iterable": "iterable repeat",
    "from_files": "urls repeat shuffle_shards format n_active_shards n_standby_shards",
    "map": "fn",
    "filter": "fn",
    "filter_map": "fn",
    "enumerate": "count_column",
    "take": "max_count",
    "shuffle": "buffer_size seed",
    "stride": "interval offset",
    "batch": "batch_size collate_fn drop_last",
    "cache": "",
    "tokenize": "tokenizer tokenizer_kwargs target_column parallel max_workers prefetch_factor "
    "ordered executor_type",
    "add_bos_eos": "bos_token_id eos_token_id target_column",
    "ensure_bos_eos": "tokenizer target_column",
    "pad": "pad_values chunk_length",
    "chunk": "chunk_length target_columns drop_remainder",
    "concat_chunk": "chunk_length target_columns",
    "pack_chunk": "chunk_length target_columns discard_long_samples",
}


@pytest.mark.parametrize("name", WORDS)
def test_arguments_have_the_names_and_order_of_epochraft(name) -> None:
    found = [word for word in inspect.signature(getattr(Chain, name)).parameters if word != "self"]
    words = WORDS[name].split()
    assert found[: len(words)] == words


@pytest.mark.parametrize("name", ["parallel_map", "parallel_filter", "parallel_filter_map"])
def test_settings_of_workers_may_be_positional(name) -> None:
    of_workers = getattr(Chain.from_sequence(NUMBERED), name)(dict, 1, 4, True, "thread")
    assert [sample["id"] for sample in of_workers] == list(range(len(NUMBERED)))


def test_a_state_of_another_chain_is_refused() -> None:
    dataset = Chain.from_sequence(NUMBERED)
    state = dataset.concat_chunk(6).iter().state_dict()
    with pytest.raises(ConfigMismatchError, match=r"concat_chunk\(6, .*`, this one is"):
        dataset.concat_chunk(7).iter(state)
    for one, other in (
        (dataset.concat_chunk(6), dataset.concat_chunk(6, ("labels",))),
        (dataset.chunk(6), dataset.chunk(6, ("labels",))),
        (dataset.pack_chunk(6, ("input_ids",)), dataset.pack_chunk(6, ("input_ids", "labels"))),
        (dataset.pad({"input_ids": 0}, 6), dataset.pad({"input_ids": 1}, 6)),
        (dataset.add_bos_eos(1, 2), dataset.add_bos_eos(1, 2, "labels")),
        (dataset.enumerate(), dataset.enumerate("number")),
    ):
        with pytest.raises(ConfigMismatchError, match="this one is"):
            other.iter(one.iter().state_dict())
    with pytest.raises(ConfigMismatchError, match="worker 0 of 1, this is worker 1 of 2"):
        subset_of(dataset.concat_chunk(6), 1, 2, state)
    with pytest.raises(ConfigMismatchError, match="no state of a Checkpointable"):
        dataset.iter({"index": 3})


def test_workers_have_all_samples_once() -> None:
    for chain in (
        Chain.from_sequence(NUMBERED, repeat=True).take(100),
        Chain.from_iterable(NUMBERED),
        Chain.from_sequence(NUMBERED).enumerate("id").take(33),
    ):
        found = [sample["id"] for n in range(3) for sample in subset_of(chain, n, 3)]
        assert sorted(found) == sorted(sample["id"] for sample in chain)


def test_a_worker_without_a_sample_to_repeat_ends() -> None:
    chain = Chain.from_sequence(NUMBERED[:3]).repeat()
    of_each = [[one["id"] for one in islice(subset_of(chain, n, 4), 2)] for n in range(4)]
    assert of_each == [[0, 0], [1, 1], [2, 2], []]
    for number in range(4):
        with pytest.raises(UsageError, match="would never end"):
            next(subset_of(Chain.from_sequence(NUMBERED[:3]).take(0).repeat(), number, 4))
