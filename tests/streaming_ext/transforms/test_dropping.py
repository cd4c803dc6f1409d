"""Steps that leave everything out give an error or a warning, and never hang in silence."""

import itertools
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.transforms import CheckpointableDataset, interleave_datasets, processes
from tests.streaming_ext.transforms.chains import NUMBERED, subset_of
from tests.streaming_ext.transforms.conftest import write_lines

Chain = CheckpointableDataset
THREADS: dict[str, Any] = {"executor_type": "thread", "max_workers": 2, "prefetch_factor": 3}


def nothing(_: object) -> bool:
    return False


def none(_: object) -> None:
    return None


def last(sample: dict[str, Any]) -> bool:
    return bool(sample["id"] == len(NUMBERED) - 1)


def endless() -> Chain:
    return Chain.from_sequence(NUMBERED, repeat=True)


FILTERS: dict[str, Callable[[Chain, Any], Chain]] = {
    "filter": lambda d, f: d.filter(f),
    "parallel_filter": lambda d, f: d.parallel_filter(f, **THREADS),
    "parallel_filter, processes": lambda d, f: d.parallel_filter(f, max_workers=1),
}
SOURCES: dict[str, Callable[[], Chain]] = {
    "from_sequence": endless,
    "shuffled": lambda: Chain.from_sequence(NUMBERED, repeat=True, shuffle=True),
    "from_iterable": lambda: Chain.from_iterable(NUMBERED, repeat=True),
    "repeat": lambda: Chain.from_sequence(NUMBERED).repeat(),
    "of single samples": lambda: endless().map(dict).enumerate().add_bos_eos(1, 2),
    "interleave": lambda: interleave_datasets([endless(), endless().map(dict)], [3, 1]),
    "parallel_map": lambda: endless().parallel_map(dict, **THREADS),
}


@pytest.mark.parametrize(
    ("source", "how"),
    [*((source, "filter") for source in SOURCES), *(("from_sequence", how) for how in FILTERS)],
)
def test_a_pass_of_nothing_is_an_error_and_one_sample_is_enough(source, how) -> None:
    with pytest.raises(UsageError, match=r"filter\(nothing\) left out every sample of"):
        next(iter(FILTERS[how](SOURCES[source](), nothing).batch(2)))
    found = [one["id"] for one in FILTERS[how](SOURCES[source](), last).take(7)]
    assert found == [len(NUMBERED) - 1] * 7


def test_of_files(tmp_path) -> None:
    for number in range(3):
        write_lines(tmp_path / f"{number}.jsonl", NUMBERED[number::3])
    files = Chain.from_files(str(tmp_path), repeat=True)
    with pytest.raises(UsageError, match=r"filter\(nothing\) left out every sample"):
        next(iter(files.filter(nothing)))
    assert [one["id"] for one in files.filter(last).take(3)] == [len(NUMBERED) - 1] * 3


@pytest.mark.parametrize(
    ("chain", "step"),
    [
        (lambda d: d.filter_map(none), r"filter_map\(none\)"),
        (lambda d: d.chunk(100), r"chunk\(100, .*, True\)"),
        (
            lambda d: d.map(lambda s: {"input_ids": [0, 1]}).pack_chunk(
                1, ["input_ids"], discard_long_samples=True
            ),
            r"pack_chunk\(1, .*, True\)",
        ),
        (
            lambda d: d.map(lambda s: {"input_ids": []}).pack_chunk(8, ["input_ids"]),
            r"pack_chunk\(8",
        ),
        (lambda d: interleave_datasets([d, d.filter(nothing)]).shuffle(3).batch(2), "filter"),
        (lambda d: d.filter(nothing) + d, "filter"),
        (lambda d: d.filter(nothing).repeat(2), "filter"),
        (lambda d: d.filter(nothing).concat_chunk(4).cache(), "filter"),
    ],
)
def test_the_step_is_named(chain, step) -> None:
    with pytest.raises(UsageError, match=f"{step}.* left out every sample"):
        list(islice(chain(endless()), 3))


def test_a_source_with_an_end_ends() -> None:
    for source in (Chain.from_sequence(NUMBERED), Chain.from_sequence(NUMBERED).repeat(5)):
        assert not list(source.filter(nothing))
        assert [one["id"] for one in source.filter(nothing) + source.take(1)] == [0]


@pytest.mark.parametrize("how", [name for name in FILTERS if "processes" not in name])
def test_workers(how) -> None:
    """A worker that never has a sample is at its end if others have some."""

    def of_each(samples: list[Any], chosen: Callable[[Any], bool]) -> list[list[int]]:
        chain = FILTERS[how](Chain.from_sequence(samples, repeat=True), chosen)
        return [[one["id"] for one in islice(subset_of(chain, n, 4), 2)] for n in range(4)]

    def first(sample: dict[str, Any]) -> bool:
        return bool(sample["id"] == 0)

    assert of_each(NUMBERED[:40], first) == [[0, 0], [], [], []]
    assert of_each(NUMBERED[:41], first) == [[0, 0]] * 4  # workers have other samples in each pass
    with pytest.raises(UsageError, match="left out every sample"):
        of_each(NUMBERED, nothing)


class Counting:
    """Numbers that never end."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        return ({"id": number} for number in itertools.count())


def test_a_source_whose_passes_are_unknown_is_one_warning(monkeypatch, caplog) -> None:
    monkeypatch.setattr(processes, "MANY", 2_000)
    chain = Chain.from_iterable(Counting()).filter(lambda sample: sample["id"] >= 9_000)
    with caplog.at_level(logging.WARNING, logger="streaming_ext"):
        assert next(iter(chain))["id"] == 9_000
    (message,) = caplog.messages
    assert message.startswith(
        "filter(<lambda>) left out the last 2,000 samples. If the source has no end"
    )
