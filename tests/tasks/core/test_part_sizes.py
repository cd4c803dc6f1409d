"""Large files are cut and small ones joined, from plan to verify: the documents are the same."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from streaming_ext.base.arrays import ceil_div
from streaming_ext.base.errors import ConfigMismatchError, SourceError
from streaming_ext.format.provenance import SourceRows
from streaming_ext.format.reading import read_manifest, read_record
from streaming_ext.store import LocalStorage
from tasks.core.check.inspect import describe
from tasks.core.shard.part_work import ShardPartWork
from tasks.core.shard.plan import plan_shard
from tasks.core.synthetic import make_documents
from tests.command_line import file_hashes
from tests.streaming_ext.text.packed import write_documents
from tests.streaming_ext.text.readers.test_contract import KINDS
from tests.tasks.core.build_dataset import (
    build_from,
    config_of,
    manifest_of,
    require_sound,
    streams_of,
)

DOCUMENTS = [text[:1500] for text in make_documents(90, seed=8)]
CUTTABLE = [kind for kind in KINDS if kind.suffix in {".parquet", ".jsonl", ".file.arrow"}]
EACH_KIND = pytest.mark.parametrize("kind", CUTTABLE, ids=lambda kind: kind.suffix)


@pytest.fixture
def sources(tmp_path) -> Path:
    (tmp_path / "sources").mkdir()
    return tmp_path / "sources"


@pytest.fixture
def lines(sources) -> Path:
    """A file of all documents as lines, in the folder of sources."""
    write_documents(sources / "x.jsonl", DOCUMENTS)
    return sources / "x.jsonl"


def rows_of(root: Path) -> list[tuple[str, int, str]]:
    """Return source, row and split of each document, as `inspect` names them, in part order."""
    storage, found = LocalStorage(root), []
    manifest = read_manifest(storage)
    for part in manifest.parts:
        record = read_record(storage, part.part)
        origins = SourceRows.of_part(record, manifest)
        for row in pq.read_table(root / record.documents.path).to_pylist():
            origin = origins.of(row["row"])
            assert origin.from_byte == 0
            found.append((origin.source, origin.row, row["split"]))
    return found


def require_same(root: Path, whole: Path, *, files: int) -> None:
    """Check that a dataset with other parts holds the documents of one with one part per file."""
    assert streams_of(root) == streams_of(whole)
    assert rows_of(root) == rows_of(whole)
    assert describe(LocalStorage(root)).files == files
    report = require_sound(root, deep=True)
    assert report.checked.sources == files
    assert report.checked.source_rows == report.checked.retokenized == len(DOCUMENTS)


@EACH_KIND
def test_a_large_file_is_cut(kind, sources, tmp_path) -> None:
    kind.write(sources / f"x{kind.suffix}", DOCUMENTS)
    size = (sources / f"x{kind.suffix}").stat().st_size // 4 - 1
    whole = build_from(sources, tmp_path / "whole")
    cut = build_from(sources, tmp_path / "cut", part_size=size)
    parts = manifest_of(cut).parts
    assert len(parts) == 5
    assert sum(part.rows > 0 for part in parts) >= 4
    require_same(cut, whole, files=1)
    found = plan_shard(config_of(sources, cut, part_size=size), LocalStorage(cut))
    assert (found.published, found.todo) == (True, ())


@EACH_KIND
def test_small_files_are_taken_together(kind, sources, tmp_path) -> None:
    for number in range(9):
        documents = DOCUMENTS[10 * number : 10 * number + 10]
        kind.write(sources / f"{number}{kind.suffix}", documents)
    files = 9
    if kind.suffix == ".jsonl":
        (sources / "4a.jsonl").touch()
        files = 10
    whole = build_from(sources, tmp_path / "whole")
    least = 3 * (sources / f"0{kind.suffix}").stat().st_size
    joined = build_from(sources, tmp_path / "joined", min_part_size=least)
    parts = manifest_of(joined).parts
    assert 2 <= len(parts) <= 4
    assert sum(part.files for part in parts) == files
    require_same(joined, whole, files=files)


def test_what_was_cut_another_way_is_refused(lines, tmp_path) -> None:
    root = build_from(lines, tmp_path / "out", part_size=2**15)
    (root / "manifest.json").unlink()
    for size in (2**16, 2**30):
        said = r"(?s)part 00000: .*x\.jsonl \[0-.*Use the old sources, --part-size"
        with pytest.raises(ConfigMismatchError, match=said):
            build_from(lines, root, part_size=size)
    data = bytearray(lines.read_bytes())
    data[-10:-4] = b"xxxxxx"  # in the last span
    lines.write_bytes(data)
    last = len(list((root / "parts").iterdir())) - 1
    with pytest.raises(ConfigMismatchError, match=r"content xxh128") as caught:
        build_from(lines, root, part_size=2**15)
    assert str(caught.value).count("content xxh128") == 1
    (root / f"parts/{last:05}.json").unlink()
    build_from(lines, root, part_size=2**15)  # only that span is made again
    require_sound(root, deep=True)


def test_a_bad_file_among_joined_ones_is_named(sources, tmp_path) -> None:
    write_documents(sources / "0.jsonl", DOCUMENTS[:2])
    (sources / "1.jsonl").write_bytes(b'{"text": "a"}\n{"text": 5}\n')
    with pytest.raises(SourceError, match=r"/1\.jsonl: line 2, byte \d+: 'text' is of type number"):
        build_from(sources, tmp_path / "out", min_part_size=2**20)


def test_lines_longer_than_a_part(sources, tmp_path) -> None:
    lines = sources / "x.jsonl"
    write_documents(lines, ["a" * 5000, "b", "c" * 9000, "d"])
    root = build_from(sources, tmp_path / "out", part_size=1024, holdout_fraction=0)
    parts = manifest_of(root).parts
    assert len(parts) == ceil_div(lines.stat().st_size, 1024)
    assert [part.rows for part in parts if part.rows] == [1, 1, 1, 1]
    assert rows_of(root) == [(str(lines), row, "train") for row in range(4)]
    require_sound(root, deep=True)


def test_a_dataset_says_nothing_of_options_that_are_not_used(lines, tmp_path) -> None:
    root = build_from(lines, tmp_path / "a")
    same = build_from(lines, tmp_path / "b", part_size=lines.stat().st_size)
    assert file_hashes(root) == file_hashes(same)
    text = (root / "manifest.json").read_text()
    manifest = json.loads(text)
    assert manifest["format"] == 1
    assert set(manifest["parts"][0]) == {
        "part",
        "source",
        "record",
        "rows",
        "null_documents",
        "empty_documents",
        "text_bytes",
    }
    text += (root / "parts/00000.json").read_text()
    assert [word for word in ("spans", "dup", "unicode", "keep_columns") if word in text] == []
    assert pq.read_schema(root / "documents/00000.parquet").names == ["row", "split", "tokens"]
    assert not (root / "duplicates").exists()


def test_a_file_that_changes_between_two_of_its_spans(lines, tmp_path, monkeypatch) -> None:
    def written_and_changed(*arguments: Any) -> None:
        clean_up(*arguments)
        lines.write_bytes(lines.read_bytes().replace(b" the ", b" eht "))

    clean_up, root = ShardPartWork.clean_up, tmp_path / "dataset"
    with monkeypatch.context() as patch:
        patch.setattr(ShardPartWork, "clean_up", written_and_changed)
        with pytest.raises(SourceError, match=r"x\.jsonl: changed since the run began"):
            build_from(lines, root, part_size="20KiB")
    assert len(list((root / "parts").iterdir())) == 1
    with pytest.raises(ConfigMismatchError, match=r"made from other sources:\n.*x\.jsonl: content"):
        build_from(lines, root, part_size="20KiB")
