"""Token streams by hand: with one id per byte, "ab" is 97, 98 and the end-of-text id 256."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streaming_ext.base.errors import (
    EngineMismatchError,
    SourceError,
    StorageError,
    TokenizerError,
)
from streaming_ext.format.layout import Split
from streaming_ext.format.schema import content_hash
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.text.readers import parquet as documents
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.text_hashes import document_hashes, held_out
from streaming_ext.text.tokenizer.engine import Encoded, ReferenceEngine
from streaming_ext.writing.part_files import DOCUMENTS_SCHEMA
from tasks.core.workers import tokenize_part
from tests.command_line import file_hashes
from tests.tasks.core.doubles import (
    EOT,
    byte_tokenizer,
    ids_in,
    make_spec,
    record_in,
    tokenize_job,
    tokenized,
    write_source,
)


def stream(scratch: Path, split: Split = "train", *, spec: DatasetSpec | None = None) -> list[int]:
    """Return the ids of a split of the tokenized part."""
    held = record_in(scratch).splits[split]
    return ids_in(scratch, spec or make_spec(), split, held)


def provenance(scratch: Path) -> list[tuple[int, str, int]]:
    (file,) = (scratch / "documents").iterdir()
    table = pq.read_table(file)
    assert table.schema == DOCUMENTS_SCHEMA
    return [(row["row"], row["split"], row["tokens"]) for row in table.to_pylist()]


def test_by_hand(tmp_path) -> None:
    texts = ["ab", None, "", "<|", "é"]
    source = write_source(tmp_path / "x.parquet", texts)
    left = tmp_path / "s/train/00003/shard.00000.mds"  # left by a killed run
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x" * 1000)
    (tmp_path / "s/leftover").touch()
    part, reports = tokenized(source, tmp_path / "s", make_spec(), part=3)
    assert stream(tmp_path / "s") == [97, 98, EOT, 60, 124, EOT, 0xC3, 0xA9, EOT]
    assert provenance(tmp_path / "s") == [(0, "train", 2), (3, "train", 2), (4, "train", 2)]
    packed = part.splits["train"]
    assert (part.part, packed.padding, packed.samples) == (3, 3, 3)
    assert part.source.model_dump(exclude_defaults=True) == {
        "url": source.url,
        "size": source.size,
        "version": f"xxh128:{content_hash((tmp_path / 'x.parquet').read_bytes())}",
    }
    assert (reports[-1].fraction, reports[-1].text_bytes, reports[-1].tokens) == (1.0, 6, 9)
    assert {path.name for path in (tmp_path / "s").iterdir()} == {
        "documents",
        "record.json",
        "train",
    }


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=st.lists(st.none() | st.text(max_size=8), max_size=40),
    fraction=st.sampled_from([0.0, 0.2, 0.5, 0.95]),
    seed=st.integers(0, 2**64 - 1),
)
@example(texts=[], fraction=0.5, seed=0)
@example(texts=[None, "", None], fraction=0.5, seed=0)
def test_every_document_stands_once_in_its_split(tmp_path, texts, fraction, seed) -> None:
    source = write_source(tmp_path / "x.parquet", texts, row_group_size=7)
    spec = make_spec(holdout_fraction=fraction, holdout_seed=seed)
    if texts and not any(texts):
        with pytest.raises(SourceError, match="no document in its"):
            tokenized(source, tmp_path / "s", spec)
        return
    part, _ = tokenized(source, tmp_path / "s", spec)

    kept = [(row, text) for row, text in enumerate(texts) if text]
    out = held_out(
        document_hashes(pa.array([text for _, text in kept], pa.large_string()), seed=seed),
        fraction=fraction,
    )
    sides = ["holdout" if side else "train" for side in out]
    assert set(part.splits) == set(spec.splits)
    for split in spec.splits:
        expected = []
        for (_, text), side in zip(kept, sides, strict=True):
            expected += [*text.encode(), EOT] if side == split else []
        assert stream(tmp_path / "s", split, spec=spec) == expected
        held = part.splits[split]
        assert (held.documents, held.tokens) == (expected.count(EOT), len(expected))
        assert bool(held.shards) == bool(expected)
    assert (part.rows, part.null_documents, part.empty_documents) == (
        len(texts),
        texts.count(None),
        texts.count(""),
    )
    assert part.text_bytes == sum(len(text.encode()) for _, text in kept)
    assert provenance(tmp_path / "s") == [
        (row, side, len(text.encode())) for (row, text), side in zip(kept, sides, strict=True)
    ]


def test_bytes_do_not_depend_on_batches(tmp_path, monkeypatch) -> None:
    texts = [f"{number} " * (number % 5) for number in range(200)]
    source = write_source(tmp_path / "x.parquet", texts, row_group_size=30)
    spec = make_spec(holdout_fraction=0.3)
    whole, _ = tokenized(source, tmp_path / "whole", spec)
    defaults = {"name": None, "span": None, "batch_bytes": 50}
    monkeypatch.setattr(documents.ParquetFormat.read, "__kwdefaults__", defaults)
    batches, reports = tokenized(source, tmp_path / "batches", spec)
    assert len(reports) > 10
    assert batches == whole
    assert len(file_hashes(tmp_path / "whole")) > 10
    assert file_hashes(tmp_path / "batches") == file_hashes(tmp_path / "whole")
    fractions = [report.fraction for report in reports]
    assert fractions == sorted(fractions)


def touch(path: Path) -> None:
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))


def link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Path.unlink, "changed while it was read. Run again"),
        (touch, "changed while it was read. Run again"),
        (lambda path: write_source(path, ["cd"]), "changed while it was read"),
        (link_to_itself, "cannot be read: Too many levels"),
    ],
)
def test_a_source_that_changes_while_it_is_read(tmp_path, change, words) -> None:
    path = tmp_path / "x.parquet"
    job = tokenize_job(write_source(path, ["ab"]), tmp_path / "s", make_spec())
    chosen = byte_tokenizer()
    with pytest.raises(SourceError, match=rf"x\.parquet: {words}"):
        tokenize_part.tokenize_part(job, chosen, ReferenceEngine(chosen), lambda _: change(path))
    assert not (tmp_path / "s/record.json").exists()


def test_a_source_that_changed_before_it_is_read(tmp_path) -> None:
    source = write_source(tmp_path / "x.parquet", ["ab"])
    for listed, words in (
        (SourceFile(url=source.url, size=source.size - 1), "when the run began"),
        (SourceFile(url=str(tmp_path / "gone"), size=1), "gone: cannot be read"),
    ):
        with pytest.raises(SourceError, match=words):
            tokenized(listed, tmp_path / "s", make_spec())


class Wrong(ReferenceEngine):
    """An engine that differs from the reference in the last id."""

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        encoded = super().encode(texts)
        encoded.ids[-1] += 1
        return encoded


@pytest.mark.parametrize(
    ("tokenizer", "engine", "error", "words"),
    [
        (
            byte_tokenizer(vocab_size=256, eot_id=ord("!")),
            ReferenceEngine,
            TokenizerError,
            r"x\.parquet: the text of row 3 gives the end-of-text id 33",
        ),
        (
            byte_tokenizer(vocab_size=99, eot_id=0),
            ReferenceEngine,
            TokenizerError,
            "id 99 is outside the vocabulary of 99 ids",
        ),
        (
            byte_tokenizer(),
            Wrong,
            EngineMismatchError,
            r"x\.parquet, in the batch from row 1 on: ",
        ),
    ],
    ids=["end of text in a text", "id outside the vocabulary", "an engine that differs"],
)
def test_wrong_ids_are_refused(tmp_path, tokenizer, engine, error, words) -> None:
    source = write_source(tmp_path / "x.parquet", [None, "ab", "", "c!", "!"])
    job = tokenize_job(source, tmp_path / "s", make_spec(tokenizer=tokenizer))
    with pytest.raises(error, match=words):
        tokenize_part.tokenize_part(job, tokenizer, engine(tokenizer))
    assert not (tmp_path / "s/record.json").exists()


def test_scratch_that_cannot_be_written(tmp_path) -> None:
    source = write_source(tmp_path / "x.parquet", ["ab"])
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Cannot write to scratch .*Not a directory"):
        tokenized(source, tmp_path / "file/s", make_spec())
