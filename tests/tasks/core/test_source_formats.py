"""The same documents make the same dataset in whatever format they come, from plan to estimate."""

import gzip
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.manifest import Manifest
from streaming_ext.store import LocalStorage
from streaming_ext.text.documents.files import codec_of
from streaming_ext.text.listing import list_sources
from tasks.core.check.decode import decode_samples
from tasks.core.check.verify import verify
from tasks.core.config import ShardConfig
from tasks.core.estimate.config import EstimateConfig
from tasks.core.estimate.estimate import estimate
from tasks.core.shard.sources import check_sources
from tasks.core.synthetic import make_documents
from tests.streaming_ext.text.packed import pack, write_documents
from tests.tasks.core.build_dataset import build_dataset, build_from

DOCUMENTS = [text[:2000] for text in make_documents(60, seed=5)]
FILES: Sequence[Sequence[str | None]] = [
    [*DOCUMENTS[:20], None, ""], DOCUMENTS[20:50], [None, *DOCUMENTS[50:]]
]  # fmt: skip


def lines(documents: Sequence[str | None]) -> bytes:
    return b"".join(
        json.dumps({"id": row, "text": text}).encode() + b"\n" for row, text in enumerate(documents)
    )


def tar(documents: Sequence[str | None]) -> bytes:
    """The documents as `.txt` and `.json` in turns; one that is null has neither."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as file:
        for number, text in enumerate(documents):
            ending, data = "cls", b"0"
            if text is not None:
                ending, data = "txt", text.encode()
                if number % 2:
                    ending, data = "json", json.dumps({"text": text}).encode()
            member = tarfile.TarInfo(f"{number:04}.{ending}")
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return whole.getvalue()


def write_lines(folder: Path, *suffixes: str) -> Path:
    """`FILES` in a folder, each with the next of the suffixes."""
    folder.mkdir()
    for number, documents in enumerate(FILES):
        suffix = suffixes[number % len(suffixes)]
        path = folder / f"{number:03}{suffix}"
        if suffix.startswith(".tar"):
            pack(tar(documents), path, codec_of(suffix))
        else:
            write_documents(path, documents)
    return folder


def made(root: Path) -> dict[str, bytes]:
    """Shards, indexes and provenance: all but what names the sources."""
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in sorted(root.rglob("*"))
        if file.is_file() and file.parent.name != "parts" and file.name != "manifest.json"
    }


@pytest.fixture(scope="module")
def as_parquet(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> Path:
    return build_dataset(tmp_path_factory.mktemp("parquet"), FILES, tokenizer=str(vocabulary))


@pytest.mark.parametrize(
    "suffixes",
    [
        (".jsonl",),
        (".jsonl.gz", ".jsonl.zst", ".ndjson.bz2"),
        (".jsonl.xz", ".jsonl.lz4", ".arrow"),
        (".cbor", ".cbor.gz", ".cbor.zst"),
        (".tar", ".tar.gz", ".cbor"),
        (".avro", ".csv", ".tsv"),
        (".csv.gz", ".tsv.zst", ".avro.xz"),
    ],
)
def test_the_same_stream(
    as_parquet: Path, tmp_path: Path, vocabulary: Path, suffixes: tuple[str, ...]
) -> None:
    sources = write_lines(tmp_path / "sources", *suffixes)
    root = build_from(sources, tmp_path / "dataset", tokenizer=str(vocabulary))
    assert made(root) == made(as_parquet)
    report = verify(LocalStorage(root), deep=True)
    assert report.findings == ()
    assert report.checked.source_rows == sum(map(len, FILES))
    assert report.checked.retokenized > 50
    (sample,) = decode_samples(LocalStorage(root), "train", [3])
    excerpt = sample.excerpts[0]
    assert excerpt.text[:20] in str(FILES[excerpt.part][excerpt.source_row.row])


def test_verify_sees_another_text(tmp_path: Path, vocabulary: Path) -> None:
    sources = write_lines(tmp_path / "sources", ".jsonl")
    root = build_from(sources, tmp_path / "dataset", tokenizer=str(vocabulary))
    file = sources / "001.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"text": "', b'"text": "x', 1))
    findings = verify(LocalStorage(root), deep=True).findings
    assert [finding.file for finding in findings] == [str(file)]


def test_formats_may_be_mixed(as_parquet: Path, tmp_path: Path, vocabulary: Path) -> None:
    sources = write_lines(tmp_path / "sources", ".jsonl", ".jsonl.gz", ".ndjson")
    parquet = as_parquet.parent / "sources/001.parquet"
    (sources / "001.jsonl.gz").unlink()
    (sources / "001.parquet").write_bytes(parquet.read_bytes())
    assert [source.name for source in list_sources([str(sources)])] == [
        "000.jsonl", "001.parquet", "002.ndjson"
    ]  # fmt: skip
    root = build_from(sources, tmp_path / "dataset", tokenizer=str(vocabulary))
    assert made(root) == made(as_parquet)


def test_wrong_columns_are_refused_before_any_work(tmp_path: Path) -> None:
    sources = write_lines(tmp_path / "sources", ".jsonl", ".jsonl.gz")
    for column, said in (("body", "has no column 'body'.* id, text"), ("id", "of type number")):
        config = ShardConfig(
            sources=(str(sources),), output="o", tokenizer="t", text_column=column
        )  # fmt: skip
        with pytest.raises(UsageError, match=said):
            check_sources(config)


def test_a_bad_line_fails_its_part(tmp_path: Path, vocabulary: Path) -> None:
    sources = write_lines(tmp_path / "sources", ".jsonl.gz")
    data = lines(FILES[1]).splitlines(keepends=True)
    data[4] = b'{"text": "half\n'
    (sources / "001.jsonl.gz").write_bytes(gzip.compress(b"".join(data)))
    with pytest.raises(SourceError, match=r"001\.jsonl\.gz: line 5, byte \d+: no valid JSON"):
        build_from(sources, tmp_path / "dataset", tokenizer=str(vocabulary))


@pytest.mark.parametrize(
    "suffix", [".jsonl", ".jsonl.gz", ".arrow", ".cbor", ".tar", ".avro", ".csv"]
)
def test_the_estimate_is_what_a_run_makes(
    as_parquet: Path, tmp_path: Path, vocabulary: Path, suffix: str
) -> None:
    sources = write_lines(tmp_path / "sources", suffix)
    config = EstimateConfig(
        sources=(str(sources),), tokenizer=str(vocabulary), pattern="gpt2", sequence_length=64,
        holdout_fraction=0.2, shard_size=4096, workers=1, engine="reference",
    )  # fmt: skip
    found = estimate(config)
    manifest = Manifest.model_validate_json((as_parquet / "manifest.json").read_bytes())
    assert found.tokens.value == pytest.approx(manifest.tokens, abs=0.5)
    assert found.text_bytes.value == pytest.approx(manifest.text_bytes, abs=0.5)
    assert found.documents.value == pytest.approx(len(DOCUMENTS))
    assert found.sample_files == 3


def test_json_arrays(as_parquet: Path, tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "sources").mkdir()
    for number, documents in enumerate(FILES):
        rows = [{"id": row, "story": {"text": text}} for row, text in enumerate(documents)]
        codec, suffix = [("none", ""), ("gzip", ".gz"), ("zstd", ".zst")][number]
        file = tmp_path / "sources" / f"data{number:02}.json{suffix}"
        pack(json.dumps(rows).encode(), file, codec)
    pattern = tmp_path / "sources/data*.json*"
    options: dict[str, Any] = {"tokenizer": str(vocabulary), "text_column": "story.text"}
    root = build_from(pattern, tmp_path / "dataset", **options)
    assert made(root) == made(as_parquet)
    assert verify(LocalStorage(root), deep=True).findings == ()
    found = estimate(EstimateConfig(sources=(str(pattern),), workers=1, pattern="gpt2", **options))
    manifest = Manifest.model_validate_json((as_parquet / "manifest.json").read_bytes())
    assert found.tokens.value == pytest.approx(manifest.tokens, abs=0.5)


def test_plain_text(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "sources").mkdir()
    for number, text in enumerate(DOCUMENTS[:4]):
        name, codec = [("a.py", "none"), ("b", "none"), ("c.txt.gz", "gzip"), ("d.x", "none")][
            number
        ]
        pack(text.encode(), tmp_path / "sources" / name, codec)
    options: dict[str, Any] = {"tokenizer": str(vocabulary), "format": "text"}
    root = build_from(tmp_path / "sources", tmp_path / "dataset", **options)
    same = [[text] for text in DOCUMENTS[:4]]
    as_rows = build_dataset(tmp_path / "rows", same, tokenizer=str(vocabulary))
    assert made(root) == made(as_rows)
    assert verify(LocalStorage(root), deep=True).findings == ()
    sources = (str(tmp_path / "sources"),)
    found = estimate(EstimateConfig(sources=sources, workers=1, pattern="gpt2", **options))
    manifest = Manifest.model_validate_json((root / "manifest.json").read_bytes())
    assert found.tokens.value == pytest.approx(manifest.tokens, abs=0.5)


def test_several_columns(as_parquet: Path, tmp_path: Path, vocabulary: Path) -> None:
    """A title and a body, joined, are the text that stands in one column elsewhere."""
    (tmp_path / "sources").mkdir()
    for number, documents in enumerate(FILES):
        rows = []
        for text in documents:
            title, found, body = (text or "").partition("\n\n")
            story = {"title": title or None, "meta": {"text": body}} if found and body else None
            rows.append(story or {"title": None, "meta": {"text": text}})
        data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        (tmp_path / "sources" / f"{number:03}.jsonl").write_bytes(data)
    assert b'"title": "' in data
    options: dict[str, Any] = {"text_column": ("title", "meta.text"), "tokenizer": str(vocabulary)}
    root = build_from(tmp_path / "sources", tmp_path / "dataset", **options)
    assert made(root) == made(as_parquet)
    assert verify(LocalStorage(root), deep=True).findings == ()
