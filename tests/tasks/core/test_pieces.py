"""Large files cut and small ones taken together, from plan to verify: the same documents."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import ConfigMismatchError, SourceError
from streaming_ext.format.layout import SPLITS, Split
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.reading import read_manifest, read_record
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store import LocalStorage
from streaming_ext.text.documents.source_format import SourceFormat
from streaming_ext.text.readers.arrow import ArrowFormat
from streaming_ext.text.readers.json_files import JsonLinesFormat
from streaming_ext.text.readers.parquet import ParquetFormat
from tasks.core.check.decode import decode_samples
from tasks.core.check.inspect import describe
from tasks.core.check.verify import verify
from tasks.core.config import ShardConfig
from tasks.core.shard.plan import plan_shard
from tasks.core.shard.shard_build import ShardBuild
from tasks.core.synthetic import make_documents
from tests.tasks.core.build_dataset import Forger, build_from
from tests.tasks.core.doubles import write_source

TEXT = ReadOptions()
DOCUMENTS = [text[:1500] for text in make_documents(90, seed=8)]
FORMATS: list[SourceFormat] = [ParquetFormat(), JsonLinesFormat(), ArrowFormat()]
ALL = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)


def write(kind: SourceFormat, path: Path, documents: Sequence[str]) -> Path:
    """A file of documents, with some 10 places to cut it at."""
    path.parent.mkdir(exist_ok=True)
    if kind.name == "parquet":
        write_source(path, documents, row_group_size=9)
    elif kind.name == "arrow":
        table = pa.table({"text": documents})
        with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_file(raw, table.schema) as writer:
            writer.write_table(table, max_chunksize=9)
    else:
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in documents]
        path.write_bytes("\n".join(lines).encode())
    return path


def rows_of(root: Path) -> list[tuple[str, int, str]]:
    """Source, row and split of each document, as `inspect` tells them, by the order of parts."""
    from streaming_ext.format.provenance import SourceRows

    storage, found = LocalStorage(root), []
    manifest = read_manifest(storage)
    for part in manifest.parts:
        record = read_record(storage, part.part)
        places = SourceRows.of_part(record, manifest)
        table = pq.read_table(root / record.documents.path).to_pylist()
        for row in table:
            place = places.of(row["row"])
            assert place.from_byte == 0
            found.append((place.source, place.row, row["split"]))
    return found


def stream_of(root: Path, split: Split = "train") -> list[int]:
    """The ids of a split, part after part, without padding."""
    made = Forger(root)
    ids: list[int] = []
    for part, record in made.records.items():
        held = record.splits[split]
        ids += made.stream(part, split)[: held.tokens].tolist()
    return ids


@ALL
def test_a_large_file_is_cut(kind: SourceFormat, tmp_path: Path, vocabulary: Path) -> None:
    path = write(kind, tmp_path / f"sources/x{kind.suffixes[0]}", DOCUMENTS)
    size = path.stat().st_size
    options: dict[str, Any] = {"tokenizer": str(vocabulary)}
    whole = build_from(path.parent, tmp_path / "whole", **options)
    cut = build_from(path.parent, tmp_path / "cut", part_size=size // 4 - 1, **options)
    manifests = [read_manifest(LocalStorage(root)) for root in (whole, cut)]
    assert [len(manifest.parts) for manifest in manifests] == [1, 5]
    for split in SPLITS:
        assert stream_of(cut, split) == stream_of(whole, split) != []
    assert manifests[0].tokens == manifests[1].tokens
    assert rows_of(cut) == rows_of(whole)
    assert sum(part.rows > 0 for part in manifests[1].parts) >= 4
    assert describe(LocalStorage(cut)).files == 1
    report = verify(LocalStorage(cut), deep=True)
    assert report.findings == ()
    assert report.checked.sources == 1
    assert report.checked.source_rows == len(DOCUMENTS)
    assert report.checked.retokenized == len(DOCUMENTS)
    config = ShardConfig(
        sources=(str(path.parent),), output=str(cut), part_size=size // 4 - 1, pattern="gpt2",
        sequence_length=64, holdout_fraction=0.2, shard_size=4096, **options,
    )  # fmt: skip
    found = plan_shard(config, LocalStorage(cut))
    assert found.published
    assert found.todo == ()


@ALL
def test_small_files_are_taken_together(
    kind: SourceFormat, tmp_path: Path, vocabulary: Path
) -> None:
    for number in range(9):
        documents = DOCUMENTS[10 * number : 10 * number + 10]
        write(kind, tmp_path / f"sources/{number}{kind.suffixes[0]}", documents)
    if kind.name == "jsonl":
        (tmp_path / "sources/4a.jsonl").touch()
    options: dict[str, Any] = {"tokenizer": str(vocabulary)}
    whole = build_from(tmp_path / "sources", tmp_path / "whole", **options)
    least = 3 * (tmp_path / f"sources/0{kind.suffixes[0]}").stat().st_size
    joined = build_from(tmp_path / "sources", tmp_path / "joined", min_part_size=least, **options)
    manifest = read_manifest(LocalStorage(joined))
    assert 2 <= len(manifest.parts) <= 4
    assert sum(part.files for part in manifest.parts) == 9 + (kind.name == "jsonl")
    assert rows_of(joined) == rows_of(whole)
    for split in SPLITS:
        assert stream_of(joined, split) == stream_of(whole, split) != []
    assert describe(LocalStorage(joined)).files == 9 + (kind.name == "jsonl")
    report = verify(LocalStorage(joined), deep=True)
    assert report.findings == ()
    assert report.checked.sources == 9 + (kind.name == "jsonl")
    assert report.checked.retokenized == len(DOCUMENTS)


def test_what_was_cut_another_way_is_refused(tmp_path: Path, vocabulary: Path) -> None:
    path = write(JsonLinesFormat(), tmp_path / "sources/x.jsonl", DOCUMENTS)
    options: dict[str, Any] = {"tokenizer": str(vocabulary)}
    root = build_from(path.parent, tmp_path / "out", part_size=2**15, **options)
    (root / "manifest.json").unlink()
    for size in (2**16, 2**30):
        said = r"(?s)part 00000: .*x\.jsonl \[0-.*Use the old sources, --part-size"
        with pytest.raises(ConfigMismatchError, match=said):
            build_from(path.parent, root, part_size=size, **options)
    data = bytearray(path.read_bytes())
    data[-10:-4] = b"xxxxxx"  # of the last piece
    path.write_bytes(data)
    last = len(list((root / "parts").iterdir())) - 1
    with pytest.raises(ConfigMismatchError, match=r"content xxh128") as caught:
        build_from(path.parent, root, part_size=2**15, **options)
    assert str(caught.value).count("content xxh128") == 1
    (root / f"parts/{last:05}.json").unlink()
    build_from(path.parent, root, part_size=2**15, **options)  # only that piece is made again
    assert verify(LocalStorage(root), deep=True).findings == ()


def test_a_bad_file_among_joined_ones_is_named(tmp_path: Path, vocabulary: Path) -> None:
    for number in range(3):
        write(JsonLinesFormat(), tmp_path / f"sources/{number}.jsonl", DOCUMENTS[:2])
    (tmp_path / "sources/1.jsonl").write_bytes(b'{"text": "a"}\n{"text": 5}\n')
    with pytest.raises(SourceError, match=r"/1\.jsonl: line 2, byte \d+: 'text' is of type number"):
        build_from(
            tmp_path / "sources", tmp_path / "out", tokenizer=str(vocabulary), min_part_size=2**20
        )


def test_lines_longer_than_a_piece(tmp_path: Path, vocabulary: Path) -> None:
    texts = ["a" * 5000, "b", "c" * 9000, "d"]
    path = write(JsonLinesFormat(), tmp_path / "sources/x.jsonl", texts)
    options: dict[str, Any] = {"tokenizer": str(vocabulary), "holdout_fraction": 0.0}
    root = build_from(path.parent, tmp_path / "out", part_size=1024, **options)
    manifest = read_manifest(LocalStorage(root))
    assert len(manifest.parts) == -(-path.stat().st_size // 1024)
    assert [part.rows for part in manifest.parts if part.rows] == [1, 1, 1, 1]
    (sample,) = decode_samples(LocalStorage(root), "train", [0])
    assert sample.excerpts[0].text[:50] == "a" * 50
    assert rows_of(root) == [(str(path), row, "train") for row in range(4)]
    assert verify(LocalStorage(root), deep=True).findings == ()


def test_nothing_changes_below_the_part_size(tmp_path: Path, vocabulary: Path) -> None:
    path = write(JsonLinesFormat(), tmp_path / "sources/x.jsonl", DOCUMENTS)
    roots = [
        build_from(path.parent, tmp_path / name, tokenizer=str(vocabulary), **options)
        for name, options in (("a", {}), ("b", {"part_size": path.stat().st_size}))
    ]
    files = [
        {str(f.relative_to(root)): f.read_bytes() for f in root.rglob("*") if f.is_file()}
        for root in roots
    ]
    assert files[0] == files[1]
    manifest = json.loads(files[0]["manifest.json"])
    assert set(manifest["parts"][0]) == {
        "part", "source", "record", "rows", "null_documents", "empty_documents", "text_bytes"
    }  # fmt: skip
    assert "spans" not in json.loads(files[0]["parts/00000.json"])
    assert Manifest.model_validate_json(files[0]["manifest.json"]).format == 1


def test_a_file_that_changes_between_two_of_its_pieces(
    tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(JsonLinesFormat(), tmp_path / "sources/x.jsonl", DOCUMENTS)
    options = {"tokenizer": str(vocabulary), "part_size": "20KiB"}

    def written_and_changed(*arguments: Any) -> None:
        forget(*arguments)
        file.write_bytes(file.read_bytes().replace(b" the ", b" eht "))

    forget = ShardBuild.forget
    with monkeypatch.context() as patch:
        patch.setattr(ShardBuild, "forget", written_and_changed)
        with pytest.raises(SourceError, match=r"x\.jsonl: changed since the run began"):
            build_from(tmp_path / "sources", tmp_path / "dataset", **options)
    assert len(list((tmp_path / "dataset/parts").iterdir())) == 1
    with pytest.raises(ConfigMismatchError, match=r"made from other sources:\n.*x\.jsonl: content"):
        build_from(tmp_path / "sources", tmp_path / "dataset", **options)
