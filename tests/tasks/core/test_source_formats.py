"""The same documents make the same dataset in every source format, from plan to estimate."""

from pathlib import Path
from typing import Any

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.store import LocalStorage
from streaming_ext.text.documents.files import codec_of
from tasks.core.check.decode import decode_samples
from tasks.core.config import ShardConfig
from tasks.core.estimate.config import EstimateConfig
from tasks.core.estimate.estimate import estimate
from tasks.core.shard.sources import find_sources
from tasks.core.synthetic import make_documents
from tests.command_line import file_hashes
from tests.conftest import small_vocabulary
from tests.streaming_ext.text.packed import pack, write_documents, write_rows
from tests.tasks.core.build_dataset import build_dataset, build_from, manifest_of, require_sound

SUFFIXES = [
    ".jsonl",
    ".jsonl.gz",
    ".jsonl.zst",
    ".ndjson.bz2",
    ".jsonl.xz",
    ".parquet",
    ".arrow",
    ".ndjson",
    ".jsonl.lz4",
    ".cbor",
    ".cbor.gz",
    ".cbor.zst",
    ".tar",
    ".tar.gz",
    ".avro",
    ".csv",
    ".tsv",
    ".csv.gz",
    ".tsv.zst",
    ".avro.xz",
]
DOCUMENTS = [text[:2000] for text in make_documents(100, seed=5)]
FILES: list[list[str | None]] = [
    [*DOCUMENTS[number :: len(SUFFIXES)], *[None, ""][: number % 3]]
    for number in range(len(SUFFIXES))
]


@pytest.fixture(autouse=True)
def estimates_in_this_process(one_worker) -> None:
    """Start no process for an estimate."""


def made(root: Path) -> dict[str, str]:
    """Return shards, indexes and provenance: everything except the files that name the sources."""
    return {
        path: digest
        for path, digest in file_hashes(root).items()
        if not path.startswith(("parts/", "manifest.json"))
    }


def require_same(root: Path, as_parquet: Path) -> None:
    """Check that a dataset equals the one made from Parquet files, and matches its sources."""
    assert made(root) == made(as_parquet)
    report = require_sound(root, deep=True, deep_documents=50)
    assert report.checked.retokenized >= 50


def require_estimated(root: Path, sources: Path, **options: Any) -> None:
    """Check that the estimate of small files, which it reads whole, is what a run makes of them."""
    tokenizer = str(small_vocabulary())
    config = EstimateConfig(
        sources=(str(sources),),
        tokenizer=tokenizer,
        workers=1,
        pattern="gpt2",
        sample_files=len(FILES),
        **options,
    )
    found, manifest = estimate(config), manifest_of(root)
    assert found.tokens.value == pytest.approx(manifest.tokens, abs=0.5)
    assert found.text_bytes.value == pytest.approx(manifest.text_bytes, abs=0.5)
    documents = sum(split.documents for split in manifest.splits.values())
    assert found.documents.value == pytest.approx(documents)


@pytest.fixture(scope="module")
def as_parquet(tmp_path_factory) -> Path:
    return build_dataset(tmp_path_factory.mktemp("parquet"), FILES)


def test_the_same_stream(as_parquet, tmp_path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for number, suffix in enumerate(SUFFIXES):
        write_documents(sources / f"{number:03}{suffix}", FILES[number])
    root = build_from(sources, tmp_path / "dataset")
    require_same(root, as_parquet)
    require_estimated(root, sources)
    (sample,) = decode_samples(LocalStorage(root), "train", [3])
    excerpt = sample.excerpts[0]
    assert excerpt.text[:20] in str(FILES[excerpt.part][excerpt.source_row.row])


def test_a_column_that_holds_no_texts_is_refused_before_any_work(tmp_path) -> None:
    write_documents(tmp_path / "x.jsonl.gz", DOCUMENTS[:3])
    config = ShardConfig(sources=(str(tmp_path),), output="o", tokenizer="t", text_column="id")
    with pytest.raises(UsageError, match="of type number"):
        find_sources(config, config.read_options)


def test_json_arrays_with_a_title_and_a_body(as_parquet, tmp_path) -> None:
    """Title and body, joined, are the text that other formats hold in one column."""
    (tmp_path / "sources").mkdir()
    for number, texts in enumerate(FILES):
        rows = []
        for text in texts:
            title, _, body = (text or "").partition("\n\n")
            whole = {"title": None, "story": {"text": text}}
            rows.append({"title": title, "story": {"text": body}} if title and body else whole)
        suffix = ("", ".gz", ".zst")[number % 3]
        write_rows(tmp_path / f"sources/data{number:02}.json{suffix}", rows)
    pattern = tmp_path / "sources/data*.json*"
    options = {"text_column": ("title", "story.text")}
    root = build_from(pattern, tmp_path / "dataset", **options)
    require_same(root, as_parquet)
    require_estimated(root, pattern, **options)


def test_plain_text(tmp_path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for name, text in zip(("a.py", "b", "c.txt.gz", "d.x"), DOCUMENTS, strict=False):
        pack(text.encode(), sources / name, codec_of(name))
    options = {"format": "text"}
    root = build_from(sources, tmp_path / "dataset", **options)
    same = [[text] for text in DOCUMENTS[:4]]
    as_rows = build_dataset(tmp_path / "rows", same)
    assert made(root) == made(as_rows)
    require_sound(root, deep=True)
    require_estimated(root, sources, **options)
