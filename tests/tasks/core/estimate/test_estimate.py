"""Estimates beside what runs really make of the same sources."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from streaming_ext.base.errors import ScratchError, SourceError, UsageError
from streaming_ext.format.manifest import Manifest
from streaming_ext.text.sources import SourceFile
from tasks.core.estimate.config import EstimateConfig, parse_rate
from tasks.core.estimate.estimate import Estimate, _planned_for, estimate
from tasks.core.synthetic import make_documents
from tests.conftest import DOCUMENTS_A_FILE, NUM_FILES
from tests.servers.storage.swift import SwiftServer, s3_client

OPTIONS = {"pattern": "gpt2", "sequence_length": 128, "shard_size": "16KiB",
           "holdout_fraction": 0.1, "workers": 1}  # fmt: skip


def plan(*sources: object, tokenizer: Path, **options: object) -> Estimate:
    """An estimate with the options that the session's dataset was made with."""
    return estimate(
        EstimateConfig(
            sources=tuple(map(str, sources)), tokenizer=str(tokenizer), **(OPTIONS | options)
        )
    )


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 files of 5 row groups and more, from file to file in another language."""
    folder = tmp_path_factory.mktemp("varied")
    texts = [text[:6000] for text in make_documents(200, seed=3)]
    for number in range(30):
        own = [text if row % 60 >= number else text.upper() for row, text in enumerate(texts)]
        own = own[number : number + 48 + number]
        table = pa.table({"text": own, "id": list(range(len(own)))})
        pq.write_table(table, folder / f"{number:02}.parquet", row_group_size=10,
                       write_statistics=False)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def truth(varied: Path, vocabulary: Path) -> Estimate:
    """All of them, read whole."""
    return plan(varied, tokenizer=vocabulary, sample_files=30)


def test_what_is_read_whole_is_what_a_run_makes(
    sources: Path, dataset: Path, vocabulary: Path
) -> None:
    manifest = Manifest.model_validate_json((dataset / "manifest.json").read_bytes())
    found = plan(sources, tokenizer=vocabulary)
    assert found.tokens.value == pytest.approx(manifest.tokens, abs=0.5)
    assert found.text_bytes.value == pytest.approx(manifest.text_bytes, abs=0.5)
    assert found.documents.value == pytest.approx(NUM_FILES * DOCUMENTS_A_FILE)
    assert found.tokens.error == found.documents.error == 0
    samples = sum(split.samples for split in manifest.splits.values())
    assert found.samples.value == pytest.approx(samples, abs=NUM_FILES)
    assert found.shards == pytest.approx(
        sum(split.shards for split in manifest.splits.values()), abs=NUM_FILES
    )
    stored = sum(file.stat().st_size for file in dataset.rglob("*.zstd"))
    assert found.shard_bytes.value == pytest.approx(stored, rel=0.05)
    tables = sum(file.stat().st_size for file in (dataset / "documents").iterdir())
    assert found.cost.output == pytest.approx(stored + tables, rel=0.1)
    assert found.worker_rate > 0


def test_intervals_hold_the_truth(varied: Path, truth: Estimate, vocabulary: Path) -> None:
    assert truth.tokens.error == 0
    found = [
        plan(varied, tokenizer=vocabulary, sample_files=8, sample_size=2**18, sample_seed=seed)
        for seed in range(2)
    ]
    assert len({each.tokens.value for each in found}) == 2  # each looks elsewhere
    for each in found:
        assert each.sample_files == 8
        assert each.sample_bytes < truth.sample_bytes / 5
        for name in ("documents", "text_bytes", "tokens"):
            value, true = getattr(each, name), getattr(truth, name).value
            assert 0 < (value.error or 0) < 0.5
            assert value.value == pytest.approx(true, rel=value.error)


def test_the_same_seed_gives_the_same_estimate(varied: Path, vocabulary: Path) -> None:
    options = {"sample_files": 3, "sample_size": 2**18, "sample_seed": 5}
    first, second = (plan(varied, tokenizer=vocabulary, **options) for _ in range(2))
    assert first.tokens == second.tokens
    assert first.shard_bytes == second.shard_bytes


def test_one_file_stands_for_many(varied: Path, truth: Estimate, vocabulary: Path) -> None:
    file = varied / "03.parquet"
    total = 1000 * file.stat().st_size
    one = plan(file, tokenizer=vocabulary)
    found = plan(file, tokenizer=vocabulary, total_size=total, hosts=4, link="1Gbit",
                 remote_sources=True)  # fmt: skip
    assert found.scaled
    assert found.files == 1000
    assert found.tokens.value == pytest.approx(1000 * one.tokens.value)
    assert found.tokens.error is None  # nobody knows how the others differ
    assert found.cost.fetched == total
    assert found.cost.busy["network"] == pytest.approx(total / 4 / 125e6)


def test_a_single_file_is_sampled_by_its_blocks(
    varied: Path, vocabulary: Path, tmp_path: Path
) -> None:
    tables = [pq.read_table(file) for file in sorted(varied.glob("*.parquet"))]
    pq.write_table(pa.concat_tables(tables), tmp_path / "one.parquet", row_group_size=30)
    whole = plan(tmp_path / "one.parquet", tokenizer=vocabulary)
    found = plan(tmp_path / "one.parquet", tokenizer=vocabulary, sample_size=2**18)
    assert whole.tokens.error == 0
    assert found.sample_bytes < whole.sample_bytes / 2
    assert 0 < (found.tokens.error or 0) < 0.2
    assert found.tokens.value == pytest.approx(whole.tokens.value, rel=found.tokens.error)


def test_texts_that_repeat_are_counted_as_often(vocabulary: Path, tmp_path: Path) -> None:
    texts = make_documents(5, seed=9) * 400
    pq.write_table(pa.table({"text": texts}), tmp_path / "x.parquet", row_group_size=500)
    size = sum(map(len, map(str.encode, texts)))
    found = plan(tmp_path / "x.parquet", tokenizer=vocabulary, sample_size=2**17)
    assert found.text_bytes.value == pytest.approx(size, rel=0.1)


def test_nulls_and_empty_texts_are_no_documents(vocabulary: Path, tmp_path: Path) -> None:
    texts = [*make_documents(30, seed=9), None, "", None]
    pq.write_table(pa.table({"text": texts}), tmp_path / "x.parquet")
    assert plan(tmp_path / "x.parquet", tokenizer=vocabulary).documents.value == pytest.approx(30)
    pq.write_table(pa.table({"text": pa.array([None, ""], pa.string())}), tmp_path / "x.parquet")
    with pytest.raises(SourceError, match=r"x\.parquet: no text"):
        plan(tmp_path / "x.parquet", tokenizer=vocabulary)


def test_damaged_files_are_reported_and_left_out(
    varied: Path, vocabulary: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.parquet").write_bytes((varied / "00.parquet").read_bytes())
    (tmp_path / "b.parquet").write_text("no parquet")
    assert plan(tmp_path, tokenizer=vocabulary).unreadable == 1
    with pytest.raises(SourceError, match=r"b\.parquet"):
        plan(tmp_path / "b.parquet", tokenizer=vocabulary)
    with pytest.raises(UsageError, match="no column 'body'"):
        plan(tmp_path, tokenizer=vocabulary, text_column="body")


def test_object_storage_is_looked_into_by_range(
    varied: Path, truth: Estimate, vocabulary: Path, s3: SwiftServer, bucket: str
) -> None:
    client = s3_client(s3.url)
    for file in sorted(varied.glob("*.parquet"))[:6]:
        client.put_object(Bucket=bucket, Key=f"data/{file.name}", Body=file.read_bytes())
    client.close()
    options: dict[str, object] = {"sample_files": 3, "sample_size": 2**17}
    here = plan(varied / "0[0-5].parquet", tokenizer=vocabulary, **options)
    found = plan(
        f"s3://{bucket}/data", tokenizer=vocabulary, output=f"s3://{bucket}/out", **options
    )
    assert found.tokens == here.tokens
    assert found.cost.fetched == found.source_bytes
    assert found.cost.uploaded > 0
    assert found.link == 125e6  # nothing else was said
    assert here.link is None


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1Gbit", 125e6), ("10 gbit/s", 1.25e9), ("500MB", 5e8), ("1.5kB/s", 1500), ("800bps", 100)],
)
def test_rates_as_people_write_them(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["fast", "", "-1Gbit", "1Gbyte", "0Gbit"])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="link"):
        EstimateConfig(sources=("x",), tokenizer="y", link=text)


def test_parts_are_planned_for(tmp_path: Path, vocabulary: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": "a few words of text"}\n' * 4000)
    part_size = file.stat().st_size // 7 - 1
    cut = plan(file, tokenizer=vocabulary, part_size=part_size)
    assert (cut.files, cut.parts) == (1, 8)
    scaled = plan(file, tokenizer=vocabulary, total_size=file.stat().st_size * 2,
                  part_size=part_size)  # fmt: skip
    assert (scaled.files, scaled.parts) == (2, 16)


@pytest.mark.parametrize(("total_size", "min_part_size", "parts"), [
    ("1MB", "0B", 100), ("1MB", "100KB", 10), ("1MB", "2KB", 100), ("1005KB", "100KB", 10),
])  # fmt: skip
def test_small_files_are_taken_together(
    tmp_path: Path, vocabulary: Path, total_size: str, min_part_size: str, parts: int
) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "words."}\n' * 500)
    config = EstimateConfig(
        sources=(str(tmp_path),), tokenizer=str(vocabulary), total_size=total_size,
        total_files=100 if total_size == "1MB" else 101, min_part_size=min_part_size,
    )  # fmt: skip
    source = SourceFile(url=str(tmp_path / "x.jsonl"), size=9500)
    assert len(_planned_for(config, [source])[1]) == parts


@pytest.mark.parametrize(
    ("options", "said"),
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
def test_what_cannot_be_planned(
    tmp_path: Path, vocabulary: Path, options: dict[str, object], said: str
) -> None:
    pq.write_table(pa.table({"text": make_documents(20, seed=4)}), tmp_path / "a.parquet")
    with pytest.raises((UsageError, ScratchError, ValidationError), match=said):
        plan(tmp_path / "a.parquet", tokenizer=vocabulary, **options)
