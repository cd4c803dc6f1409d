"""Records and manifests are read back as the same bytes, and refused if they do not add up."""

import json
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
from streaming_ext.format.spec import (
    DatasetSpec,
    ExcludedTexts,
    ImportedIds,
    NearRule,
    SubsetRule,
    TokenizerIdentity,
)

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


MANIFEST = Manifest(
    spec=SPEC,
    parts=(RECORD.summary(),),
    splits={
        split: SplitSummary(
            index=FileRecord.of(f"{split}/index.json", b"{}"),
            documents=1,
            tokens=2,
            padding=2,
            samples=1,
            shards=1,
        )
        for split in ("train", "holdout")
    },
    tokenizer_files=(FileRecord.of("tokenizer/ranks.tiktoken", b"x"),),
)


@pytest.mark.parametrize("value", [RECORD, MANIFEST, SPEC])
def test_round_trip_byte_for_byte(value) -> None:
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


def test_a_part_names_its_files_and_its_record_by_their_bytes() -> None:
    assert [(file.path, file.size) for file in RECORD.files()] == [
        ("train/00007/shard.00000.mds.zstd", 50),
        ("train/00007/shard.00001.mds.zstd", 50),
        ("holdout/00007/shard.00000.mds.zstd", 50),
        ("documents/00007.parquet", 4),
    ]
    assert RECORD.files()[0].xxh128 == "b" * 32
    assert RECORD.summary().record == FileRecord.of("parts/00007.json", to_json(RECORD))


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


OTHER_TOKENIZER = TokenizerIdentity(
    kind="huggingface",
    name="other",
    vocab_size=70_000,
    eot_id=0,
    eot_token="</s>",
    pattern=None,
    fingerprint="f1",
)
DIFFERENCES: dict[str, tuple[object, object]] = {  # the values of SPEC and of the other one
    "text_column": ("text", "body"),
    "text_separator": (SPEC.text_separator, " "),
    "source_format": (SPEC.source_format, "jsonl"),
    "on_bad_document": (SPEC.on_bad_document, "skip"),
    "sequence_length": (4, 8),
    "holdout_fraction": (0.1, 0.2),
    "holdout_seed": (7, 8),
    "shard_size": ("1KiB", "2KiB"),
    "compression": ("zstd:1", "none"),
    "output_format": ("mds", "other"),
    "shuffle": (SPEC.shuffle, "documents"),
    "shuffle_seed": (SPEC.shuffle_seed, 1),
    "deduplicate": (SPEC.deduplicate, "near"),
    "near.similarity": (None, 0.8),
    "near.bands": (None, 14),
    "near.rows": (None, 8),
    "near.ngram": (None, 5),
    "unicode": (SPEC.unicode, "15.0.0"),
    "keep_columns": ((), ("language",)),
    "filters.where": (None, "a == 1"),
    "filters.min_tokens": (None, 3),
    "exclude.files": (None, ("/evals.jsonl",)),
    "exclude.columns": (None, ("text",)),
    "exclude.words": (None, 13),
    "exclude.texts": (None, 2),
    "exclude.without_ngram": (None, 0),
    "exclude.mark_only": (None, False),
    "exclude.hash": (None, "1" * 32),
    "subset.of": (None, "0" * 32),
    "subset.documents": (None, 3),
    "imported.set_format": (None, "olmo"),
    "imported.dtype": (None, "uint8"),
    "imported.holdout_by": (None, "ids"),
    "tokenizer.kind": ("tiktoken", "huggingface"),
    "tokenizer.vocab_size": (50_257, 70_000),
    "tokenizer.eot_id": (50_256, 0),
    "tokenizer.eot_token": ("<|endoftext|>", "</s>"),
    "tokenizer.pattern": ("päттern \\s", None),
    "tokenizer.fingerprint": ("f0", "f1"),
}


def test_each_field_that_differs_is_listed_except_the_name_of_the_tokenizer() -> None:
    plain = {field: other for field, (_, other) in DIFFERENCES.items() if "." not in field}
    wanted = SPEC.model_copy(
        update=plain
        | {
            "shard_size": 2048,
            "tokenizer": OTHER_TOKENIZER,
            "filters": Filters(where="a == 1", min_tokens=3),
            "near": NearRule(similarity=0.8, bands=14, rows=8, ngram=5),
            "exclude": ExcludedTexts(files=("/evals.jsonl",), words=13, texts=2, hash="1" * 32),
            "subset": SubsetRule(of="0" * 32, documents=3),
            "imported": ImportedIds(set_format="olmo", dtype="uint8"),
        }
    )
    assert {*DatasetSpec.model_fields} == {field.partition(".")[0] for field in DIFFERENCES}
    lines = [
        f"{field}: the output has {ours!r}, this run asks for {other!r}"
        for field, (ours, other) in DIFFERENCES.items()
    ]
    assert sorted(SPEC.differences(wanted)) == sorted(lines)
    with pytest.raises(ConfigMismatchError) as caught:
        SPEC.require_same(wanted, where="/out")
    first, *differences, advice = str(caught.value).splitlines()
    assert first == "/out was made with another configuration:"
    assert sorted(line.strip() for line in differences) == sorted(lines)
    assert "another --output" in advice


def test_the_name_of_a_tokenizer_does_not_matter() -> None:
    tokenizer = SPEC.tokenizer.model_copy(update={"name": "r50k_base"})
    SPEC.require_same(SPEC.model_copy(update={"tokenizer": tokenizer}), where="x")


def changed(value: BaseModel, changes: dict[str, Any]) -> bytes:
    """Change values at some paths; a record gets the hash of its new content."""
    read = json.loads(to_json(value))
    is_sealed = read.pop("xxh128", None) is not None
    before = json.dumps(read)
    for path, new in changes.items():
        *above, name = path.split(".")
        holder = read
        for each in above:
            holder = holder[int(each) if isinstance(holder, list) else each]
        if new is REMOVED:
            holder.pop(int(name) if isinstance(holder, list) else name)
        elif isinstance(holder, list):
            holder.insert(int(name), new)
        else:
            holder[name] = new
    assert json.dumps(read) != before
    data = json.dumps(read, indent=1).encode() + b"\n"
    return sealed(data) if is_sealed else data


REMOVED = object()
READ = json.loads(to_json(RECORD))
FIRST_SHARD = "splits.train.shards.0"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": 10}, "itself in rows$"),
        ({"splits.train.documents": 6}, "itself in rows$"),
        ({"splits.train.tokens": 12}, "itself in splits.train$"),
        ({"splits.train.shards.1": REMOVED}, "itself in splits.train$"),
        ({"splits.holdout.shards.0.samples": 2}, "splits.holdout$"),
        ({"spec.sequence_length": 5}, "splits.holdout; splits.train$"),
        ({"part": 8}, "itself in documents$"),
        ({"documents.path": "manifest.json"}, "itself in documents$"),
        ({f"{FIRST_SHARD}.raw_name": "00008/shard.00000.mds"}, "splits.train$"),
        ({f"{FIRST_SHARD}.zip_name": "00007/shard.00001.mds.zstd"}, "splits.train$"),
        ({FIRST_SHARD: READ["splits"]["train"]["shards"][0]}, "splits.train$"),
        ({"rows": 10, "splits.train.documents": 6}, "itself in splits.train$"),
        ({"rows": -1}, "rows: must be greater than or equal to 0, got -1"),
        ({"splits.train.tokens": -1, "splits.train.padding": 13}, "tokens: must be"),
        ({"format": 0}, "format"),
        ({"splits.test": READ["splits"]["train"]}, "test"),
        ({"documents.xxh128": "z" * 32}, "xxh128"),
        ({"source": REMOVED}, "source is missing"),
        ({f"{FIRST_SHARD}.samples": 0}, "samples: must be greater than 0, got 0"),
        ({"spec.holdout_fraction": 1.0}, "must be less than 1, got 1.0"),
        *(
            ({f"{where}surprise": 1}, "surprise is no field that is known")
            for where in (
                "",
                "spec.",
                "spec.tokenizer.",
                "source.",
                "splits.train.",
                f"{FIRST_SHARD}.",
                "documents.",
            )
        ),
        *(
            ({"documents.path": path}, "path")
            for path in (
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
            )
        ),
    ],
)
def test_a_record_that_lies_is_refused(changes, said) -> None:
    with pytest.raises(CorruptDatasetError, match=said) as caught:
        from_json(PartRecord, changed(RECORD, changes), where="out/parts/00007.json")
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


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff\xfe", b'{"format": 1}'])
def test_what_is_no_record_is_refused(data) -> None:
    with pytest.raises(CorruptDatasetError, match="here is no valid part record"):
        record_of(data, where="here")
    with pytest.raises(CorruptDatasetError, match="here is no valid manifest"):
        manifest_of(data, where="here")


def test_values_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        RECORD.rows = 1  # type: ignore[misc]
