"""What a configuration takes, what it refuses, and what of it decides the bytes."""

import os
from typing import Any

import pytest
from pydantic import ValidationError

from streaming_ext.base.errors import UsageError
from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity
from tasks.core.config import ShardConfig
from tests.tasks.core.doubles import byte_tokenizer

TOKENIZER = TokenizerIdentity.model_validate(byte_tokenizer().description())


def make(**changes: Any) -> ShardConfig:
    return ShardConfig(**({"sources": ["x"], "output": "y", "tokenizer": "gpt2"} | changes))


def test_defaults() -> None:
    assert make().model_dump(exclude={"workers"}) == {
        "sources": ("x",),
        "output": "y",
        "tokenizer": "gpt2",
        "eot_token": None,
        "pattern": None,
        "text_column": ("text",),
        "text_separator": r"\n\n",
        "format": None,
        "on_bad_document": "fail",
        "where": None,
        "min_bytes": None,
        "max_bytes": None,
        "min_characters": None,
        "min_tokens": None,
        "max_tokens": None,
        "keep_columns": (),
        "deduplicate": None,
        "sequence_length": 2048,
        "holdout_fraction": 0.001,
        "holdout_seed": 0,
        "shard_size": 67_108_864,
        "output_format": "mds",
        "compression": None,
        "shuffle": None,
        "shuffle_seed": None,
        "scratch": None,
        "part_size": 2**30,
        "min_part_size": 0,
        "check_sources": False,
        "hub_config": None,
        "max_files": None,
        "nodes": None,
        "node_rank": None,
        "engine": "auto",
        "executor": "here",
        "partitions": 16,
    }
    assert make().workers == os.cpu_count()


@pytest.mark.parametrize("missing", ["sources", "output", "tokenizer"])
def test_required(missing: str) -> None:
    given = {"sources": ["x"], "output": "y", "tokenizer": "gpt2"}
    del given[missing]
    with pytest.raises(ValidationError, match=rf"{missing}\n  Field required"):
        ShardConfig(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("sources", ["x", ["x"], ("x", "y")], [[], [1], [""], None]),
        ("output", ["y"], ["", None, 1]),
        ("tokenizer", ["gpt2"], ["", None]),
        ("sequence_length", [1, 2**24], [0, -1, 2**24 + 1, 1.5]),
        ("holdout_fraction", [0, 0.5, 1 - 2**-53], [-1e-9, 1, 1.5, float("nan")]),
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
def test_bounds(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        make(**{field: value})
    for value in bad:
        with pytest.raises(ValidationError) as caught:
            make(**{field: value})
        assert {error["loc"][0] for error in caught.value.errors()} == {field}


@pytest.mark.parametrize(
    ("text", "expected"), [("1KiB", 1024), ("64MiB", 2**26), ("2kB", 2000), (2048, 2048)]
)
def test_shard_size_in_words(text: str | int, expected: int) -> None:
    assert make(shard_size=text).shard_size == expected


def test_a_node_and_its_share() -> None:
    made = make(nodes=3, node_rank=2)
    assert (made.nodes, made.node_rank) == (3, 2)
    with pytest.raises(ValidationError, match="goes with --nodes"):
        make(node_rank=0)
    with pytest.raises(ValidationError, match="goes with --nodes, and that with --node-rank"):
        make(nodes=2)
    with pytest.raises(ValidationError, match="must be below --nodes 2"):
        make(nodes=2, node_rank=2)
    with pytest.raises(ValidationError, match="must be here with --nodes"):
        make(nodes=2, node_rank=0, executor="dask://h:1")


def test_a_seed_goes_with_a_shuffle() -> None:
    assert make(shuffle="documents").spec(TOKENIZER).shuffle_seed == 0
    assert make(shuffle="documents", shuffle_seed=3).spec(TOKENIZER).shuffle_seed == 3
    for seed in (0, 3):
        with pytest.raises(ValidationError, match="goes with --shuffle"):
            make(shuffle_seed=seed)


def test_a_wrong_codec_says_which_there_are() -> None:
    with pytest.raises(ValidationError, match="expected none or one of zstd, gz, bz2"):
        make(compression="zip")


def test_unknown_and_changed_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        make(sequence_lenght=5)
    with pytest.raises(ValidationError, match="frozen"):
        make().output = "z"  # type: ignore[misc]


def test_round_trip_through_json() -> None:
    config = make(shard_size="1MiB", compression="gz:6", scratch="/s", max_files=3)
    assert ShardConfig.model_validate_json(config.model_dump_json()) == config


class TestSpec:
    def test_by_hand(self) -> None:
        config = make(
            text_column="body", sequence_length=8, holdout_fraction=0.25, holdout_seed=9,
            shard_size="1KiB", compression="none",
        )  # fmt: skip
        assert config.spec(TOKENIZER) == DatasetSpec(
            text_column="body",
            sequence_length=8,
            holdout_fraction=0.25,
            holdout_seed=9,
            shard_size=1024,
            compression="none",
            tokenizer=TOKENIZER,
        )

    @pytest.mark.parametrize(
        "means",
        [{"workers": 1}, {"scratch": "/s"}, {"executor": "dask://h:1"},
         {"partitions": 2}, {"engine": "reference"}, {"sources": ["z"]},
         {"output": "z"}, {"max_files": 1}, {"tokenizer": "another name"}],
    )  # fmt: skip
    def test_means_do_not_decide_the_bytes(self, means: dict[str, Any]) -> None:
        assert make(**means).spec(TOKENIZER) == make().spec(TOKENIZER)

    @pytest.mark.parametrize(
        "change",
        [{"text_column": "x"}, {"text_column": ("x", "y")}, {"on_bad_document": "skip"},
         {"sequence_length": 4}, {"holdout_fraction": 0.5},
         {"holdout_seed": 1}, {"shard_size": 10**6}, {"compression": "none"}],
    )  # fmt: skip
    def test_each_of_the_others_does(self, change: dict[str, Any]) -> None:
        [line] = make().spec(TOKENIZER).differences(make(**change).spec(TOKENIZER))
        assert line.startswith(next(iter(change)))

    def test_a_separator_decides_where_it_stands_between_columns(self) -> None:
        assert make(text_separator=" ").spec(TOKENIZER) == make().spec(TOKENIZER)
        two = make(text_column=["a", "b"])
        assert two.spec(TOKENIZER) != two.model_copy(update={"text_separator": " "}).spec(TOKENIZER)
        assert two.spec(TOKENIZER).read_options == two.read_options
        assert two.read_options.separator == "\n\n"

    def test_the_format_of_files_is_in_it(self) -> None:
        spec = make(format="jsonl").spec(TOKENIZER)
        assert spec.read_options.source_format == "jsonl"
        [line] = make().spec(TOKENIZER).differences(spec)
        assert line.startswith("source_format")

    def test_a_shard_must_hold_a_sample(self) -> None:
        with pytest.raises(UsageError, match=r"1024 bytes cannot hold one sample of 500 tokens"):
            make(shard_size=1024, sequence_length=500).spec(TOKENIZER)


@pytest.mark.parametrize(("nodes", "node_rank"), [(2, None), (None, 0), (2, 2), (0, 0), (2, -1)])
def test_a_node_is_one_of_so_many(nodes: int | None, node_rank: int | None) -> None:
    with pytest.raises(ValueError, match="node"):
        make(nodes=nodes, node_rank=node_rank)
    assert make(nodes=2, node_rank=1).node_rank == 1
