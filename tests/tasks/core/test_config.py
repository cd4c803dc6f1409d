"""The values that a configuration takes or refuses, and those that decide the bytes.

Another test compares the defaults with docs/reference/options.md.
"""

from typing import Any

import pytest
from pydantic import ValidationError

from streaming_ext.base.threads import cores
from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity
from tasks.core.config import ShardConfig
from tests.tasks.core.doubles import byte_tokenizer

TOKENIZER = TokenizerIdentity.model_validate(byte_tokenizer().description())


def make(**changes: Any) -> ShardConfig:
    return ShardConfig(**({"sources": ["x"], "output": "y", "tokenizer": "gpt2"} | changes))


def spec(**changes: Any) -> DatasetSpec:
    return make(**changes).spec(TOKENIZER)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("sources", ["x", ["x"], ("x", "y")], [[], [1], [""], None]),
        ("output", ["y"], ["", None, 1]),
        ("tokenizer", ["gpt2"], ["", None]),
        ("sequence_length", [1, 2**24], [0, 2**24 + 1, 1.5]),
        ("holdout_fraction", [0, 1 - 2**-53], [-1e-9, 1, float("nan")]),
        ("holdout_seed", [0, 2**64 - 1], [-1, 2**64, 0.5]),
        ("shard_size", [1024, 2**32 - 1, "1KiB", "64MB"], [1023, 2**32, "4GiB", "1 parsec"]),
        ("compression", ["none", "zstd", "gz:6", "bz2:9"], ["", "zip", "zstd:23", "gz:0"]),
        ("workers", [1, 1024], [0, 1025, None]),
        ("max_files", [1, None], [0, -1]),
        ("engine", ["auto", "reference"], ["fast", "", None]),
        ("executor", ["here", "prefect://f/d", "dask://h:1", "dask+tls://h:1"], ["", "ray://h:1"]),
        ("partitions", [1, 16], [0, -1, None]),
    ],
)
def test_bounds(field, good, bad) -> None:
    for value in good:
        make(**{field: value})
    for value in bad:
        with pytest.raises(ValidationError) as caught:
            make(**{field: value})
        assert {error["loc"][0] for error in caught.value.errors()} == {field}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"node_rank": 0}, "goes with --nodes"),
        ({"nodes": 2}, "goes with --nodes, and that with --node-rank"),
        ({"nodes": 2, "node_rank": 2}, "must be below --nodes 2"),
        ({"nodes": 0, "node_rank": 0}, "nodes"),
        ({"nodes": 2, "node_rank": -1}, "node_rank"),
        ({"nodes": 2, "node_rank": 0, "executor": "dask://h:1"}, "must be here with --nodes"),
        ({"shuffle_seed": 0}, "goes with --shuffle"),
        ({"compression": "zip"}, "expected none or one of zstd, gz, bz2"),
        ({"where": "language = 'en'"}, "is not understood"),
        ({"keep_columns": ["n", "a,n"]}, "is given twice"),
        ({"sequence_lenght": 5}, "Extra inputs are not permitted"),
    ],
)
def test_what_is_refused(options, said) -> None:
    with pytest.raises(ValidationError, match=said):
        make(**options)


def test_what_is_understood() -> None:
    assert make().workers == cores()
    assert [make(shard_size=size).shard_size for size in ("64MiB", "2kB")] == [2**26, 2000]
    assert make(nodes=3, node_rank=2).node_rank == 2
    with pytest.raises(ValidationError, match="frozen"):
        make().output = "z"  # type: ignore[misc]


def test_a_specification_by_hand() -> None:
    chosen = {
        "text_column": "body",
        "sequence_length": 8,
        "holdout_fraction": 0.25,
        "holdout_seed": 9,
        "shard_size": 1024,
        "compression": "none",
    }
    assert spec(**chosen) == DatasetSpec(tokenizer=TOKENIZER, **chosen)
    assert spec(shuffle="documents").shuffle_seed == 0
    assert spec(shuffle="documents", shuffle_seed=3).shuffle_seed == 3


@pytest.mark.parametrize(
    "means",
    [
        {"workers": 1},
        {"scratch": "/s"},
        {"executor": "dask://h:1"},
        {"partitions": 2},
        {"engine": "reference"},
        {"sources": ["z"]},
        {"output": "z"},
        {"max_files": 1},
        {"tokenizer": "another name"},
        {"text_separator": " "},
    ],
    ids=str,
)
def test_means_do_not_decide_the_bytes(means) -> None:
    assert spec(**means) == spec()


@pytest.mark.parametrize(
    "change",
    [
        {"text_column": "x"},
        {"text_column": ("x", "y")},
        {"on_bad_document": "skip"},
        {"sequence_length": 4},
        {"holdout_fraction": 0.5},
        {"holdout_seed": 1},
        {"shard_size": 10**6},
        {"compression": "none"},
        {"format": "jsonl"},
    ],
    ids=str,
)
def test_each_of_the_others_does(change) -> None:
    [line] = spec().differences(spec(**change))
    assert line.removeprefix("source_").startswith(next(iter(change)))


def test_options_of_reading_are_in_the_specification() -> None:
    two = make(text_column=["a", "b"], format="jsonl")
    assert two.spec(TOKENIZER).read_options == two.read_options
    assert (two.read_options.separator, two.read_options.source_format) == ("\n\n", "jsonl")
    assert two.spec(TOKENIZER) != spec(text_column=["a", "b"], format="jsonl", text_separator=" ")
