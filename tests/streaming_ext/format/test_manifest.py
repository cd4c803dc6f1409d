"""Records and manifests: the same bytes back, and nothing in them that does not add up."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from streaming_ext.base.errors import ConfigMismatchError, CorruptDatasetError, DatasetError
from streaming_ext.format.filters import Filters
from streaming_ext.format.manifest import Manifest, SplitSummary
from streaming_ext.format.reading import manifest_of, record_of
from streaming_ext.format.record import PartRecord, SourceIdentity, SplitPart
from streaming_ext.format.schema import FileRecord, from_json, sealed, to_json
from streaming_ext.format.shard import Shard
from streaming_ext.format.spec import DatasetSpec, ImportedIds, SubsetRule, TokenizerIdentity

SPEC = DatasetSpec(
    text_column="text",
    sequence_length=4,
    holdout_fraction=0.1,
    holdout_seed=7,
    shard_size=1024,
    compression="zstd:1",
    tokenizer=TokenizerIdentity(
        kind="tiktoken",
        name="gpt2",
        vocab_size=50_257,
        eot_id=50_256,
        eot_token="<|endoftext|>",
        pattern="päттern \\s",
        fingerprint="f0",
    ),
)


def shard(number: int, samples: int) -> Shard:
    name = f"00007/shard.{number:05}.mds"
    return Shard(
        samples=samples,
        raw_name=name,
        raw_bytes=SPEC.shard_format.raw_size(samples),
        raw_hash="a" * 32,
        zip_name=f"{name}.zstd",
        zip_bytes=50,
        zip_hash="b" * 32,
    )


# 9 rows: 5 train, 1 holdout, 2 null, 1 empty; 3 samples of 4 hold 11 tokens and 1 of padding.
RECORD = PartRecord(
    part=7,
    spec=SPEC,
    source=SourceIdentity(url="/data/ünï 🎉.parquet", size=1000, version="xxh128:" + "c" * 32),
    rows=9,
    null_documents=2,
    empty_documents=1,
    text_bytes=33,
    splits={
        "train": SplitPart(documents=5, tokens=11, padding=1, shards=(shard(0, 2), shard(1, 1))),
        "holdout": SplitPart(documents=1, tokens=2, padding=2, shards=(shard(0, 1),)),
    },
    documents=FileRecord.of("documents/00007.parquet", b"PAR1"),
)


def summary_of_split(split: str) -> SplitSummary:
    return SplitSummary(
        index=FileRecord.of(f"{split}/index.json", b"{}"),
        documents=1,
        tokens=2,
        padding=2,
        samples=1,
        shards=1,
    )


MANIFEST = Manifest(
    spec=SPEC,
    parts=(RECORD.summary(),),
    splits={"train": summary_of_split("train"), "holdout": summary_of_split("holdout")},
    tokenizer_files=(FileRecord.of("tokenizer/ranks.tiktoken", b"x"),),
)


@pytest.mark.parametrize("value", [RECORD, MANIFEST, SPEC])
def test_round_trip_byte_for_byte(value: BaseModel) -> None:
    data = to_json(value)
    again = from_json(type(value), data, where="x")
    assert again == value
    assert to_json(again) == data


def test_json_reads_well_in_a_diff() -> None:
    lines = to_json(RECORD).decode().splitlines()
    assert ' "null_documents": 2,' in lines
    assert '  "url": "/data/ünï 🎉.parquet",' in lines
    keys = list(json.loads(to_json(RECORD)))
    assert keys == sorted(keys)
    assert to_json(RECORD).endswith(b"}\n")


def test_files_of_a_part() -> None:
    assert [(file.path, file.size) for file in RECORD.files()] == [
        ("train/00007/shard.00000.mds.zstd", 50),
        ("train/00007/shard.00001.mds.zstd", 50),
        ("holdout/00007/shard.00000.mds.zstd", 50),
        ("documents/00007.parquet", 4),
    ]
    assert RECORD.files()[0].xxh128 == "b" * 32


def test_summary_names_the_record_by_its_bytes() -> None:
    summary = RECORD.summary()
    assert summary.record == FileRecord.of("parts/00007.json", to_json(RECORD))
    assert (summary.part, summary.rows, summary.text_bytes) == (7, 9, 33)
    assert (summary.null_documents, summary.empty_documents) == (2, 1)


def test_sums_over_a_manifest() -> None:
    assert MANIFEST.tokens == 4
    assert MANIFEST.text_bytes == 33


def test_a_source_file_that_nothing_checked_counts_once() -> None:
    source = RECORD.source.model_copy(update={"content": "not checked"})
    pieces = [
        RECORD.summary().model_copy(update={"source": source, "span": span})
        for span in [(0, 400), (400, 1000)]
    ]
    joined = RECORD.summary().model_copy(update={"files": 3, "files_not_checked": 2})
    parts = (*pieces, RECORD.summary(), joined)
    assert MANIFEST.model_copy(update={"parts": parts}).not_checked == 1 + 2


def test_splits_follow_the_fraction() -> None:
    assert SPEC.splits == ("train", "holdout")
    assert SPEC.model_copy(update={"holdout_fraction": 0.0}).splits == ("train",)


class TestDifferences:
    OTHER: dict[str, Any] = {  # noqa: RUF012
        "text_column": "body",
        "text_separator": " ",
        "source_format": "jsonl",
        "on_bad_document": "skip",
        "sequence_length": 8,
        "holdout_fraction": 0.2,
        "holdout_seed": 8,
        "shard_size": 2048,
        "compression": "none",
        "output_format": "other",
        "shuffle": "documents",
        "shuffle_seed": 1,
        "deduplicate": "exact",
        "unicode": "15.0.0",
        "keep_columns": ("language",),
    }
    OTHER_TOKENIZER: dict[str, Any] = {  # noqa: RUF012
        "kind": "huggingface",
        "vocab_size": 70_000,
        "eot_id": 0,
        "eot_token": "</s>",
        "pattern": None,
        "fingerprint": "f1",
    }

    def test_none(self) -> None:
        assert SPEC.differences(SPEC.model_copy(deep=True)) == []

    @pytest.mark.parametrize(
        "field",
        sorted(DatasetSpec.model_fields.keys() - {"tokenizer", "filters", "imported", "subset"}),
    )
    def test_each_field(self, field: str) -> None:
        wanted = SPEC.model_copy(update={field: self.OTHER[field]})
        ours, theirs = repr(getattr(SPEC, field)), repr(self.OTHER[field])
        if field == "shard_size":
            ours, theirs = "'1KiB'", "'2KiB'"
        assert SPEC.differences(wanted) == [
            f"{field}: the output has {ours}, this run asks for {theirs}"
        ]

    def test_each_filter(self) -> None:
        wanted = SPEC.model_copy(update={"filters": Filters(where="a == 1", min_tokens=3)})
        assert SPEC.differences(wanted) == [
            "filters.where: the output has None, this run asks for 'a == 1'",
            "filters.min_tokens: the output has None, this run asks for 3",
        ]

    def test_a_subset(self) -> None:
        wanted = SPEC.model_copy(update={"subset": SubsetRule(of="0" * 32, documents=3)})
        assert SPEC.differences(wanted) == [
            f"subset.of: the output has None, this run asks for '{'0' * 32}'",
            "subset.documents: the output has None, this run asks for 3",
        ]

    def test_how_ids_were_read(self) -> None:
        wanted = SPEC.model_copy(update={"imported": ImportedIds(set_format="olmo", dtype="uint8")})
        assert SPEC.differences(wanted) == [
            "imported.set_format: the output has None, this run asks for 'olmo'",
            "imported.dtype: the output has None, this run asks for 'uint8'",
            "imported.rows: the output has None, this run asks for 'samples'",
            "imported.holdout_by: the output has None, this run asks for 'ids'",
        ]

    @pytest.mark.parametrize("field", sorted(TokenizerIdentity.model_fields.keys() - {"name"}))
    def test_each_field_of_the_tokenizer(self, field: str) -> None:
        tokenizer = SPEC.tokenizer.model_copy(update={field: self.OTHER_TOKENIZER[field]})
        [line] = SPEC.differences(SPEC.model_copy(update={"tokenizer": tokenizer}))
        assert line.startswith(f"tokenizer.{field}: the output has ")
        assert line.endswith(f"asks for {self.OTHER_TOKENIZER[field]!r}")

    def test_the_name_of_a_tokenizer_does_not_matter(self) -> None:
        tokenizer = SPEC.tokenizer.model_copy(update={"name": "r50k_base"})
        SPEC.require_same(SPEC.model_copy(update={"tokenizer": tokenizer}), where="x")

    def test_all_at_once_are_listed(self) -> None:
        tokenizer = SPEC.tokenizer.model_copy(update=self.OTHER_TOKENIZER)
        wanted = SPEC.model_copy(update=self.OTHER | {"tokenizer": tokenizer})
        assert len(SPEC.differences(wanted)) == len(self.OTHER) + len(self.OTHER_TOKENIZER)
        with pytest.raises(ConfigMismatchError) as caught:
            SPEC.require_same(wanted, where="/out")
        lines = str(caught.value).splitlines()
        assert lines[0] == "/out was made with another configuration:"
        assert len(lines) == 2 + len(self.OTHER) + len(self.OTHER_TOKENIZER)
        assert "another --output" in lines[-1]


def changed(value: BaseModel, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Other values, in a record with the hash of itself that they have."""
    read = json.loads(to_json(value))
    is_sealed = read.pop("xxh128", None) is not None
    before = json.dumps(read)
    change(read)
    assert json.dumps(read) != before
    data = json.dumps(read, indent=1).encode() + b"\n"
    return sealed(data) if is_sealed else data


def first_shard(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = record["splits"]["train"]["shards"][0]
    return found


def more_documents(record: dict[str, Any]) -> dict[str, Any]:
    splits: dict[str, Any] = record["splits"]
    splits["train"]["documents"] += 1
    return splits


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.update(rows=10), "itself in rows$"),
        (lambda r: r["splits"]["train"].update(documents=6), "itself in rows$"),
        (lambda r: r["splits"]["train"].update(tokens=12), "itself in splits.train$"),
        (lambda r: r["splits"]["train"]["shards"].pop(), "itself in splits.train$"),
        (lambda r: r["splits"]["holdout"]["shards"][0].update(samples=2), "splits.holdout$"),
        (lambda r: r["spec"].update(sequence_length=5), "splits.holdout; splits.train$"),
        (lambda r: r.update(part=8), "itself in documents$"),
        (lambda r: r["documents"].update(path="manifest.json"), "itself in documents$"),
        (lambda r: first_shard(r).update(raw_name="00008/shard.00000.mds"), "splits.train$"),
        (lambda r: first_shard(r).update(zip_name="00007/shard.00001.mds.zstd"), "splits.train$"),
        (lambda r: r["splits"]["train"]["shards"].insert(0, dict(first_shard(r))), "splits.train$"),
        (lambda r: r.update(rows=10, splits=more_documents(r)), "itself in splits.train$"),
        (lambda r: r.update(rows=-1), "rows: must be greater than or equal to 0, got -1"),
        (
            lambda r: r["splits"]["train"].update(tokens=-1, padding=13),
            "tokens: must be",
        ),
        (lambda r: r.update(format=0), "format"),
        (lambda r: r["splits"].update(test=r["splits"]["train"]), "test"),
        (lambda r: r["documents"].update(xxh128="z" * 32), "xxh128"),
        (lambda r: r.pop("source"), "source is missing"),
        (lambda r: first_shard(r).update(samples=0), "samples: must be greater than 0, got 0"),
        (lambda r: r["spec"].update(holdout_fraction=1.0), "must be less than 1, got 1.0"),
    ],
)
def test_a_record_that_lies_is_refused(
    change: Callable[[dict[str, Any]], object], said: str
) -> None:
    with pytest.raises(CorruptDatasetError, match=said) as caught:
        from_json(PartRecord, changed(RECORD, change), where="out/parts/00007.json")
    assert str(caught.value).startswith("out/parts/00007.json is no valid part record")
    for words in ("pydantic", "https:", "Input should", "validation error", "\n"):
        assert words not in str(caught.value)


def test_a_record_of_which_a_bit_is_flipped_is_refused() -> None:
    data = to_json(RECORD)
    assert from_json(PartRecord, data, where="x") == RECORD
    for byte in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[byte] ^= 1 << bit
            with pytest.raises(DatasetError):
                from_json(PartRecord, bytes(flipped), where="x")


@pytest.mark.parametrize(
    "where",
    [
        lambda r: r,
        lambda r: r["spec"],
        lambda r: r["spec"]["tokenizer"],
        lambda r: r["source"],
        lambda r: r["splits"]["train"],
        first_shard,
        lambda r: r["documents"],
    ],
)
def test_extra_fields_are_refused(where: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    with pytest.raises(CorruptDatasetError, match=r"surprise is no field that is known"):
        from_json(PartRecord, changed(RECORD, lambda r: where(r).update(surprise=1)), where="x")


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff\xfe", b'{"format": 1}'])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDatasetError, match="here is no valid part record"):
        record_of(data, where="here")
    with pytest.raises(CorruptDatasetError, match="here is no valid manifest"):
        manifest_of(data, where="here")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "train/../../x",
        "train//x",
        "train/.hidden",
        "train\\x",
        "train/a b",
        "train/x\n",
        "train/x\0",
        "http://x/y",
    ],
)
def test_unsafe_paths_are_refused(path: str) -> None:
    with pytest.raises(CorruptDatasetError, match="path"):
        from_json(
            PartRecord, changed(RECORD, lambda r: r["documents"].update(path=path)), where="x"
        )


@pytest.mark.parametrize(
    "path",
    [
        "manifest.json",
        "train/index.json",
        "train/00007/shard.00000.mds.zstd",
        "documents/100000.parquet",
        "tokenizer/tokenizer.json",
    ],
)
def test_our_own_paths_are_safe(path: str) -> None:
    assert FileRecord.of(path, b"").path == path


def test_values_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        RECORD.rows = 1  # type: ignore[misc]
