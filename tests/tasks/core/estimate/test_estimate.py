"""Estimates, compared with what runs make of the same sources."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from flows.terminal.show_plans import show_estimate
from streaming_ext.base.errors import ScratchError, SourceError, UsageError
from streaming_ext.text.readers.parquet import ParquetFormat
from tasks.core.estimate.config import EstimateConfig, parse_rate
from tasks.core.estimate.estimate import Estimate, estimate
from tasks.core.synthetic import make_documents
from tests.conftest import DOCUMENTS_A_FILE, NUM_FILES
from tests.full_disk import full_disk
from tests.servers.storage.swift import upload
from tests.tasks.core.build_dataset import build_from, manifest_of
from tests.tasks.core.check.damage import printed
from tests.tasks.core.doubles import write_source

VARIED_FILES = 16
MADE_WITH = {"sequence_length": 128, "shard_size": "16KiB", "holdout_fraction": 0.1}
SMALL: dict[str, object] = {"sample_size": 2**16}
Plan = Callable[..., Estimate]


@pytest.fixture
def plan(vocabulary, one_worker) -> Plan:
    options = {
        "tokenizer": str(vocabulary),
        "pattern": "gpt2",
        "workers": 1,
        "engine": "reference",
        **MADE_WITH,
    }

    def plan(source: object, **changes: object) -> Estimate:
        return estimate(EstimateConfig(sources=(str(source),), **(options | changes)))

    return plan


@pytest.fixture(scope="module")
def varied(tmp_path_factory) -> Path:
    """Files of 5 or more row groups; the fraction of upper-case texts differs by file."""
    folder = tmp_path_factory.mktemp("varied")
    texts = [text[:2000] for text in make_documents(100, seed=3)]
    for number in range(VARIED_FILES):
        own = [text if row % 30 >= number else text.upper() for row, text in enumerate(texts)]
        own = own[number : 2 * number + 48]
        path = folder / f"{number:02}.parquet"
        write_source(path, own, row_group_size=10, write_statistics=False)
    return folder


def test_what_is_read_whole_is_what_a_run_makes(sources, plan, tmp_path) -> None:
    dataset = build_from(sources, tmp_path / "dataset", **MADE_WITH)
    manifest, found = manifest_of(dataset), plan(sources)
    assert found.tokens.value == pytest.approx(manifest.tokens, abs=0.5)
    assert found.text_bytes.value == pytest.approx(manifest.text_bytes, abs=0.5)
    assert found.documents.value == pytest.approx(NUM_FILES * DOCUMENTS_A_FILE)
    assert found.tokens.error == found.documents.error == 0
    splits = manifest.splits.values()
    samples, shards = (sum(getattr(s, name) for s in splits) for name in ("samples", "shards"))
    assert found.samples.value == pytest.approx(samples, abs=NUM_FILES)
    assert found.shards == pytest.approx(shards, abs=NUM_FILES)
    stored = sum(file.stat().st_size for file in dataset.rglob("*.zstd"))
    assert found.shard_bytes.value == pytest.approx(stored, rel=0.05)
    tables = sum(file.stat().st_size for file in (dataset / "documents").iterdir())
    assert found.cost.output == pytest.approx(stored + tables, rel=0.1)
    assert found.worker_rate > 0


def test_intervals_hold_the_truth(varied, plan) -> None:
    truth = plan(varied, sample_files=VARIED_FILES)
    assert truth.tokens.error == 0
    found = [plan(varied, sample_files=8, sample_seed=seed, **SMALL) for seed in (1, 2, 2)]
    assert found[1].tokens == found[2].tokens
    assert found[0].tokens != found[1].tokens  # each seed draws other files
    for each in found[:2]:
        assert each.sample_files == 8
        assert each.sample_bytes < truth.sample_bytes / 5
        for name in ("documents", "text_bytes", "tokens"):
            value, true = getattr(each, name), getattr(truth, name).value
            assert 0 < (value.error or 0) < 0.5
            assert value.value == pytest.approx(true, rel=value.error)


def test_one_file_stands_for_many(varied, plan) -> None:
    file = varied / "03.parquet"
    total = 1000 * file.stat().st_size
    one = plan(file)
    found = plan(file, total_size=total, hosts=4, link="1Gbit", remote_sources=True)
    assert found.scaled
    assert found.files == 1000
    assert found.tokens.value == pytest.approx(1000 * one.tokens.value)
    assert found.tokens.error is None  # how the other files differ is not known
    assert found.cost.fetched == total
    assert found.cost.busy["network"] == pytest.approx(total / 4 / 125e6)


def test_a_single_file_is_sampled_by_its_blocks(varied, plan, tmp_path) -> None:
    pq.write_table(pq.read_table(varied), tmp_path / "one.parquet", row_group_size=20)
    whole, found = plan(tmp_path), plan(tmp_path, **SMALL)
    assert whole.tokens.error == 0
    assert found.sample_bytes < whole.sample_bytes / 2
    assert 0 < (found.tokens.error or 0) < 0.4
    assert found.tokens.value == pytest.approx(whole.tokens.value, rel=found.tokens.error)


def test_tiny_blocks_are_read_together(plan, tmp_path, monkeypatch) -> None:
    """Each read of a block parses the footer, which lists all row groups."""
    reads: list[object] = []
    read = ParquetFormat.read

    def counted(self: ParquetFormat, *given: Any, span: object, **options: Any) -> Any:
        reads.append(span)
        return read(self, *given, span=span, **options)

    monkeypatch.setattr(ParquetFormat, "read", counted)
    texts = [text[:100] for text in make_documents(150, seed=3)]
    found = []
    for size in (1, 150):
        write_source(tmp_path / "x.parquet", texts, row_group_size=size)
        found.append(plan(tmp_path).tokens.value)
    assert found[0] == pytest.approx(found[1])
    assert len(reads) == 15 + 1


def test_texts_that_repeat_are_counted_as_often(plan, tmp_path) -> None:
    texts = make_documents(5, seed=9) * 400
    write_source(tmp_path / "x.parquet", texts, row_group_size=500)
    size = sum(map(len, map(str.encode, texts)))
    assert plan(tmp_path, **SMALL).text_bytes.value == pytest.approx(size, rel=0.1)


def test_rows_that_are_no_documents_are_counted(plan, tmp_path) -> None:
    rows = [{"text": text} for text in make_documents(20, seed=9)]
    rows += [{"Text": "a"}] * 70 + [{"text": ""}, {"text": 5}, {"text": "b"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "b.jsonl").write_text('{"text": null}\n' * 10 + '{"text": ""}\n')
    found = plan(tmp_path, on_bad_document="skip", min_characters=2)
    assert found.documents.value == pytest.approx(20)
    words = "80 without text, 1 unreadable, 3 dropped by --min-characters"
    assert (found.sample_rows.rows, found.sample_rows.left_out_text) == (104, words)
    found = plan(tmp_path, on_bad_document="skip")
    (words,) = found.problems
    assert words.startswith(f"{tmp_path}/b.jsonl: no document in its 11 rows: 10 without text, 1")
    assert "Left out of its 104 rows: 80 without text, 2 without" in printed(show_estimate, found)
    with pytest.raises(SourceError, match=r"no text in the rows of the sample: .*dropped by"):
        plan(tmp_path, on_bad_document="skip", where="text == 'none'")


def test_files_that_lack_a_column(plan, tmp_path) -> None:
    texts = make_documents(30, seed=9)
    write_source(tmp_path / "a.parquet", texts)
    (tmp_path / "b.jsonl").write_text('{"text": 5}\n{"text": "a", "lang": "en"}\n')
    found = plan(tmp_path, where="lang is None", on_bad_document="skip", keep_columns="lang")
    assert (found.documents.value, found.problems) == (pytest.approx(30), ())
    pq.write_table(pa.table({"body": texts}), tmp_path / "c.parquet")
    (words,) = plan(tmp_path, on_bad_document="skip").problems
    assert "c.parquet has no column" in words
    with pytest.raises(UsageError, match=r"no column 'url'.* Neither has any other file"):
        plan(tmp_path, where="url is None")


def test_object_storage_is_read_by_range(varied, plan, s3, bucket) -> None:
    upload(s3, bucket, "data", varied)
    local = plan(varied / "0[0-3].parquet", sample_files=3, **SMALL)
    found = plan(
        f"s3://{bucket}/data/0[0-3].parquet", output=f"s3://{bucket}/out", sample_files=3, **SMALL
    )
    assert found.tokens == local.tokens
    assert found.cost.fetched == found.source_bytes
    assert found.cost.uploaded > 0
    assert found.link == 125e6  # the default
    assert local.link is None


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1Gbit", 125e6), ("10 gbit/s", 1.25e9), ("1.5kB/s", 1500), ("800bps", 100)],
)
def test_rates_as_people_write_them(text, rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["fast", "", "-1Gbit", "1Gbyte", "0Gbit"])
def test_other_rates_are_refused(text) -> None:
    with pytest.raises(ValueError, match="link"):
        EstimateConfig(sources=("x",), tokenizer="y", link=text)


def test_large_files_are_cut_into_parts(tmp_path, plan) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": "a few words of text"}\n' * 4000)
    size = file.stat().st_size
    for scale, options in ((1, {}), (2, {"total_size": size * 2})):
        found = plan(file, part_size=size // 7 - 1, **options)
        assert (found.files, found.parts) == (scale, 8 * scale)


@pytest.mark.parametrize(
    ("total_files", "total_size", "min_part_size", "parts"),
    [(100, 10**6, 10**5, 10), (100, 10**6, 2000, 100), (101, 1_005_000, 10**5, 10)],
)
def test_small_files_are_taken_together(
    tmp_path, plan, total_files, total_size, min_part_size, parts
) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "words."}\n' * 500)
    found = plan(
        tmp_path, total_files=total_files, total_size=total_size, min_part_size=min_part_size
    )
    assert found.parts == parts


def test_a_full_disk(tmp_path, plan, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write_source(tmp_path / "a.parquet", ["Some text."] * 20)
    with full_disk(), pytest.raises(ScratchError, match=f"to scratch {tmp_path}: file too large"):
        plan(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"total_files": 5}, "total-size"),
        ({"total_size": 2**40, "total_files": 10**12}, "10000000"),
        ({"total_size": 999999 * 2**50}, "10,000,000 at most"),
        ({"total_size": 999999 * 2**50, "total_files": 2}, "10,000,000 at most"),
        ({"output": "foo://x"}, "foo:// is not supported"),
        ({"output": __file__}, "is a file"),
        ({"scratch": f"{__file__}/x"}, "Cannot write to scratch"),
    ],
)
def test_what_cannot_be_planned(tmp_path, plan, options, words) -> None:
    write_source(tmp_path / "a.parquet", ["Some text."] * 20)
    with pytest.raises((UsageError, ScratchError, ValidationError), match=words):
        plan(tmp_path / "a.parquet", **options)
