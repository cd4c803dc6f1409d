"""Columns that are kept beside documents: in every format, through every phase, or one error."""

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.provenance import MAX_VALUE_BYTES
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store import LocalStorage
from streaming_ext.text.documents.columns import differing, joined, stored
from streaming_ext.text.formats import format_of
from streaming_ext.writing import part_files
from tasks.core.check.verify import verify
from tasks.core.config import ShardConfig
from tasks.core.shard.sources import check_sources
from tasks.core.synthetic import make_documents
from tests.tasks.core.build_dataset import Forger, build_from
from tests.tasks.core.doubles import make_spec

KEPT = ("language", "meta.url", "score", "adult")
TEXTS = [text[: 60 + 31 * (row % 7)] for row, text in enumerate(make_documents(40, seed=3))]
ROWS: list[dict[str, Any]] = [
    {
        "text": None if row == 7 else text,
        "language": "en" if row % 3 else "de",
        "meta": {"url": f"https://x.org/{row}" if row % 5 else None},
        "score": row / 4,
        "adult": row % 2 == 0,
        "source": "a name of ours",
    }
    for row, text in enumerate(TEXTS)
]


def value(row: dict[str, Any], column: str) -> object:
    return row["meta"]["url"] if column == "meta.url" else row[column]


EXPECTED = [tuple(value(row, column) for column in KEPT) for row in ROWS if row["text"]]


def write(folder: Path, suffix: str) -> Path:
    """The rows as a file of a format."""
    path = folder / f"rows.{suffix}"
    table = pa.Table.from_pylist(ROWS)
    if suffix == "parquet":
        words = table["language"].combine_chunks().dictionary_encode()  # as many files have them
        table = table.set_column(1, "language", words)
        pq.write_table(table, path, row_group_size=9)
    elif suffix == "arrow":
        with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_file(raw, table.schema) as writer:
            writer.write_table(table, max_chunksize=11)
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif suffix == "json":
        path.write_text(json.dumps(ROWS))
    elif suffix == "cbor":
        path.write_bytes(b"".join(cbor2.dumps(row) for row in ROWS))
    elif suffix == "tar":
        with tarfile.open(path, "w") as tar:
            for number, row in enumerate(ROWS):
                rest = json.dumps({name: value for name, value in row.items() if name != "text"})
                for ending, data in (("txt", row["text"]), ("json", rest)):
                    if data is not None:
                        member = tarfile.TarInfo(f"{number:04}.{ending}")
                        member.size = len(data.encode())
                        tar.addfile(member, io.BytesIO(data.encode()))
    return path


FORMATS = ["parquet", "arrow", "jsonl", "json", "cbor", "tar"]


@pytest.mark.parametrize(("suffix", "times"), [*((suffix, 1) for suffix in FORMATS), ("jsonl", 40)])
def test_every_format_has_the_same_values(tmp_path: Path, suffix: str, times: int) -> None:
    path = write(tmp_path, suffix)
    if times > 1 and suffix == "jsonl":  # so large that Arrow's parser takes it
        path.write_text(path.read_text() * times)
    options = ReadOptions(kept=KEPT)
    batches = list(format_of(str(path), options).read(path, options, batch_bytes=1000))
    assert len(batches) > 1
    found = [
        row
        for batch in batches
        for row in zip(*(column.to_pylist() for column in batch.values), strict=True)
    ]
    assert found == EXPECTED * (times if suffix == "jsonl" else 1)
    assert all(len(column) == len(batch.texts) for batch in batches for column in batch.values)


def test_a_condition_may_look_at_what_is_kept(tmp_path: Path) -> None:
    for suffix in ("parquet", "jsonl"):
        path = write(tmp_path, suffix)
        config = ShardConfig(
            sources=(str(path),), output="x", tokenizer="gpt2",
            where="score >= 5 and `meta.url` is not None", keep_columns="score,meta.url",
        )  # fmt: skip
        batches = list(format_of(str(path), config.read_options).read(path, config.read_options))
        found = [row for batch in batches
                 for row in zip(*(c.to_pylist() for c in batch.values), strict=True)]  # fmt: skip
        assert found == [(score, url) for _, url, score, _ in EXPECTED if score >= 5 and url]


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_missing_column_is_one_clear_error(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix)
    config = ShardConfig(sources=(str(path),), output="x", tokenizer="x", keep_columns="lang")
    with pytest.raises(UsageError, match=r"no column 'lang'[\s\S]*Correct --keep-columns"):
        check_sources(config)


def test_what_cannot_be_kept(tmp_path: Path) -> None:
    rows = [{"text": "a", "tags": ["x"], "n": 1}, {"text": "b", "tags": [], "n": "two"}]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a"], "tags": [["x"]]}), path)
    options = ReadOptions(kept=("tags",))
    with pytest.raises(UsageError, match=r"'tags' is of type list.*--keep-columns stores texts"):
        list(format_of(str(path), options).read(path, options))
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SourceError, match="'tags' is of type array, and --keep-columns stores"):
        list(format_of(str(lines), options).read(lines, options))
    options = ReadOptions(kept=("n",))
    with pytest.raises(UsageError, match="column 'n' holds values of several kinds"):
        list(format_of(str(lines), options).read(lines, options))
    plain = tmp_path / "a.txt"
    plain.write_text("a")
    with pytest.raises(UsageError, match="plain text has no columns, and --keep-columns names n"):
        list(format_of(str(plain), options).read(plain, options))
    pq.write_table(pa.table({"text": ["a", "b"], "n": ["x" * (MAX_VALUE_BYTES + 1), "y"]}), path)
    with pytest.raises(SourceError, match="row 0: 'n' is longer than 65536 bytes"):
        list(format_of(str(path), options).read(path, options))
    options = ReadOptions(kept=("n",), on_bad_document="skip")
    (batch,) = format_of(str(path), options).read(path, options)
    assert (batch.texts.to_pylist(), batch.values[0].to_pylist()) == (["b"], ["y"])
    with pytest.raises(ValidationError, match="is given twice"):
        ShardConfig(sources=("x",), output="y", tokenizer="gpt2", keep_columns=["n", "a,n"])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files; the second has no value in one column, the third is a copy of the first."""
    folder = tmp_path_factory.mktemp("sources")
    for number in range(3):
        rows = [ROWS[:20], ROWS[20:], ROWS[:20]][number]
        table = pa.Table.from_pylist([row | {"id": n} for n, row in enumerate(rows)])
        if number == 1:
            table = table.drop_columns("id").append_column("id", pa.nulls(len(rows), pa.int64()))
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=8)
    return folder


PHASES: dict[str, dict[str, object]] = {
    "in order": {},
    "small files together": {"min_part_size": "1MiB"},
    "shuffled": {"shuffle": "documents"},
    "deduplicated": {"deduplicate": "exact"},
    "shuffled and deduplicated": {"shuffle": "documents", "deduplicate": "exact"},
}


@pytest.mark.parametrize("phases", PHASES)
def test_values_stay_with_their_documents(
    tmp_path: Path, sources: Path, vocabulary: Path, phases: str
) -> None:
    kept = ["language", "meta.url", "score", "adult", "id", "source"]
    root = build_from(sources, tmp_path / "dataset", tokenizer=str(vocabulary), keep_columns=kept,
                      **PHASES[phases])  # fmt: skip
    manifest = read_manifest(LocalStorage(root))
    assert manifest.spec.keep_columns == tuple(kept)
    found = []
    for part in manifest.parts:
        table = pq.read_table(root / f"documents/{part.part:05}.parquet")
        assert table.schema.field("column.id").type in {pa.int64(), pa.large_string()}
        found += table.to_pylist()
    files = 2 if "duplicate" in phases else 3
    assert len(found) == (19 + 20 + (19 if files == 3 else 0))
    for document in found:
        names = [document[f"column.{name}"] for name in kept]
        score = document["column.score"]
        assert tuple(names[:4]) in EXPECTED
        assert names[5] == "a name of ours"
        row = int(score * 4)
        assert names[4] == (row if row < 20 else None)
        in_file = row % 20
        if phases != "small files together":
            assert document["row"] == in_file
    assert verify(LocalStorage(root), deep=True).findings == ()


def test_verify_finds_another_value(tmp_path: Path, sources: Path, vocabulary: Path) -> None:
    root = build_from(sources, tmp_path / "dataset", tokenizer=str(vocabulary),
                      keep_columns="score", max_files=1)  # fmt: skip
    forger = Forger(root)
    table = pq.read_table(root / "documents/00000.parquet")
    scores = table["column.score"].to_pylist()
    scores[3] = 100.0
    forger.set_documents(0, table.set_column(3, "column.score", pa.array(scores)))
    forger.seal()
    (finding,) = verify(LocalStorage(root), deep=True).findings
    assert re.search(r"row 3: column.score is 100.0, made again 0.75", str(finding))
    forger.set_documents(0, table.drop_columns("column.score"))
    forger.seal()
    (finding,) = verify(LocalStorage(root)).findings
    assert "its columns are not those of the record's specification" in str(finding)


def test_without_kept_columns_nothing_is_said_of_them(
    tmp_path: Path, sources: Path, vocabulary: Path
) -> None:
    root = build_from(sources, tmp_path / "dataset", tokenizer=str(vocabulary))
    assert b"keep_columns" not in (root / "manifest.json").read_bytes()
    assert read_manifest(LocalStorage(root)).format == 1
    assert pq.read_schema(root / "documents/00000.parquet").names == ["row", "split", "tokens"]


@pytest.mark.parametrize(
    ("groups", "kept"),
    [
        ([[None, None], [1, None], [2]], pa.int64()),
        ([[None], ["a", "b"]], pa.large_string()),
        ([[None], [1], [0.5]], pa.float64()),
        ([[None], [None]], pa.large_string()),
    ],
)
def test_a_column_has_the_type_of_all_of_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: list[list[Any]], kept: pa.DataType
) -> None:
    """Also of those that come row groups later."""
    monkeypatch.setattr(part_files, "_DOCUMENTS_A_ROW_GROUP", 1)
    path = tmp_path / "documents/00000.parquet"
    file = part_files.DocumentsFile(path, make_spec(keep_columns=("n",)))
    row = 0
    for values in groups:
        rows = np.arange(row, row + len(values))
        column = pa.array(values)
        file.add(rows, rows + 5, rows % 2 == 1, None, [stored(column)])
        row += len(values)
    file.close()
    table = pq.read_table(path)
    assert table.schema.field("column.n").type == kept
    assert table["column.n"].to_pylist() == [value for values in groups for value in values]
    assert table["row"].to_pylist() == list(range(row))
    assert pq.ParquetFile(path).num_row_groups == len(groups)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_numbers_that_no_type_holds_together() -> None:
    columns = [pa.array([2**53 + 1]), pa.array([0.5])]
    with pytest.raises(UsageError, match=r"'n' holds values of several kinds.*9007199254740993"):
        joined("n", columns)
    assert joined("n", [pa.array([2**53]), pa.array([0.5])]).to_pylist() == [2**53, 0.5]
    assert differing(pa.array([0.5]), pa.array([2**53 + 1])) == [0]
