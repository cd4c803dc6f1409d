"""Columns kept beside documents, in every format and through every phase, or one error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.filters import Filters
from streaming_ext.format.provenance import MAX_VALUE_BYTES
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.columns import differing, joined, stored
from streaming_ext.text.documents.document_rows import DocumentBatch
from streaming_ext.text.formats import format_of
from streaming_ext.writing import part_files
from tasks.core.config import ShardConfig
from tasks.core.shard.sources import find_sources
from tasks.core.synthetic import make_documents
from tests.streaming_ext.text.packed import write_rows
from tests.streaming_ext.text.reading import tar as tar_file
from tests.tasks.core.build_dataset import Forger, build_from, manifest_of, require_sound
from tests.tasks.core.check.damage import check
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
    """Write the rows as a file of a format."""
    path = folder / f"rows.{suffix}"
    table = pa.Table.from_pylist(ROWS)
    if suffix == "parquet":
        words = table["language"].combine_chunks().dictionary_encode()  # as in many files
        pq.write_table(table.set_column(1, "language", words), path, row_group_size=9)
    elif suffix == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=11)
    elif suffix == "tar":  # texts and columns in separate files
        members = []
        for number, row in enumerate(ROWS):
            rest = {name: value for name, value in row.items() if name != "text"}
            members.append((f"{number:04}.json", json.dumps(rest).encode()))
            if row["text"] is not None:
                members.append((f"{number:04}.txt", row["text"].encode()))
        path.write_bytes(tar_file(members))
    else:
        write_rows(path, ROWS)
    return path


def batches_of(path: Path, options: ReadOptions) -> list[DocumentBatch]:
    return list(format_of(str(path), options).read(path, options, batch_bytes=1000))


def values_of(batches: list[DocumentBatch]) -> list[tuple[object, ...]]:
    return [
        row
        for batch in batches
        for row in zip(*(column.to_pylist() for column in batch.values), strict=True)
    ]


FORMATS = ["parquet", "arrow", "jsonl", "json", "cbor", "tar"]


@pytest.mark.parametrize(("suffix", "times"), [*((suffix, 1) for suffix in FORMATS), ("jsonl", 40)])
def test_every_format_has_the_same_values(tmp_path, suffix, times) -> None:
    path = write(tmp_path, suffix)
    if times > 1:  # large enough for Arrow's parser
        path.write_text(path.read_text() * times)
    batches = batches_of(path, ReadOptions(kept=KEPT))
    assert len(batches) > 1
    assert values_of(batches) == EXPECTED * times
    assert all(len(column) == len(batch.texts) for batch in batches for column in batch.values)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_condition_may_look_at_what_is_kept(tmp_path, suffix) -> None:
    path = write(tmp_path, suffix)
    config = ShardConfig(
        sources=(str(path),),
        output="x",
        tokenizer="gpt2",
        where="score >= 5 and `meta.url` is not None",
        keep_columns="score,meta.url",
    )
    found = values_of(batches_of(path, config.read_options))
    assert found == [(score, url) for _, url, score, _ in EXPECTED if score >= 5 and url]


@pytest.mark.parametrize("name", ["x.avro", "x.csv.gz", "x.tsv.zst"])
def test_rows_of_a_schema_and_of_cells(tmp_path, name) -> None:
    rows = [
        {"id": row, "title": "even" if row % 2 == 0 else None, "text": text}
        for row, text in enumerate(TEXTS)
    ]
    write_rows(tmp_path / name, rows)
    options = ReadOptions(kept=("title",), filters=Filters(where="id >= 9 and title == 'even'"))
    assert values_of(batches_of(tmp_path / name, options)) == [("even",)] * 15


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_missing_column_is_one_clear_error(tmp_path, suffix) -> None:
    path = write(tmp_path, suffix)
    config = ShardConfig(sources=(str(path),), output="x", tokenizer="x", keep_columns="lang")
    with pytest.raises(UsageError, match=r"no column 'lang'[\s\S]*Correct --keep-columns"):
        find_sources(config, config.read_options)


LONG = "x" * (MAX_VALUE_BYTES + 1)


@pytest.mark.parametrize(
    ("name", "values", "error", "said"),
    [
        ("x.parquet", [["a"], []], UsageError, "'n' is of type list.*--keep-columns stores texts"),
        ("x.jsonl", [["a"], []], SourceError, "'n' is of type array, and --keep-columns stores"),
        ("x.jsonl", [1, "two"], UsageError, "column 'n' holds values of several kinds"),
        ("x.parquet", [LONG, "y"], SourceError, "row 0: 'n' is longer than 65536 bytes"),
    ],
)
def test_what_cannot_be_kept(tmp_path, name, values, error, said) -> None:
    path = tmp_path / name
    rows = [{"text": "a", "n": value} for value in values]
    if name == "x.parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write_rows(path, rows)
    with pytest.raises(error, match=said):
        batches_of(path, ReadOptions(kept=("n",)))
    if LONG in values:
        batches = batches_of(path, ReadOptions(kept=("n",), on_bad_document="skip"))
        assert values_of(batches) == [("y",)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """Three files; the second lacks a column, the third is a copy of the first."""
    folder = tmp_path_factory.mktemp("sources")
    for number in range(3):
        rows = [ROWS[:20], ROWS[20:], ROWS[:20]][number]
        table = pa.Table.from_pylist([row | {"id": n} for n, row in enumerate(rows)])
        if number == 1:
            table = table.drop_columns("id")
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
def test_values_stay_with_their_documents(tmp_path, sources, phases) -> None:
    kept = ["language", "meta.url", "score", "adult", "id", "source"]
    root = build_from(sources, tmp_path / "dataset", keep_columns=kept, **PHASES[phases])
    manifest = manifest_of(root)
    assert manifest.spec.keep_columns == tuple(kept)
    found = []
    for part in manifest.parts:
        table = pq.read_table(root / f"documents/{part.part:05}.parquet")
        assert table.schema.field("column.id").type in {pa.int64(), pa.large_string()}
        found += table.to_pylist()
    assert len(found) == (39 if "dup" in phases else 58)
    for document in found:
        *own, row_id, source = (document[f"column.{name}"] for name in kept)
        assert tuple(own) in EXPECTED
        assert source == "a name of ours"
        row = int(document["column.score"] * 4)
        assert row_id == (row if row < 20 else None)
        if phases != "small files together":
            assert document["row"] == row % 20
    require_sound(root, deep=True)


def test_verify_finds_another_value(tmp_path, sources) -> None:
    root = build_from(sources, tmp_path / "dataset", keep_columns="score", max_files=1)
    forger = Forger(root)
    table = pq.read_table(root / "documents/00000.parquet")
    scores = table["column.score"].to_pylist()
    scores[3] = 100.0
    forger.set_documents(0, table.set_column(3, "column.score", pa.array(scores)))
    forger.seal()
    (finding,) = check(root, deep=True).findings
    assert "row 3: column.score is 100.0, made again 0.75" in str(finding)
    forger.set_documents(0, table.drop_columns("column.score"))
    forger.seal()
    (finding,) = check(root).findings
    assert "its columns are not those of the record's specification" in str(finding)


@pytest.mark.parametrize(
    ("groups", "kept"),
    [
        ([[None, None], [1, None], [2]], pa.int64()),
        ([[None], ["a", "b"]], pa.large_string()),
        ([[None], [1], [0.5]], pa.float64()),
        ([[None], [None]], pa.large_string()),
    ],
)
def test_a_column_has_the_type_of_all_of_its_values(tmp_path, monkeypatch, groups, kept) -> None:
    """Values that come row groups later count too."""
    monkeypatch.setattr(part_files, "_DOCUMENTS_A_ROW_GROUP", 1)
    path = tmp_path / "documents/00000.parquet"
    file = part_files.DocumentsFile(path, make_spec(keep_columns=("n",)))
    flat = [value for values in groups for value in values]
    rows = np.arange(len(flat))
    for values in groups:
        own, rows = np.split(rows, [len(values)])
        file.add(own, own + 5, own % 2 == 1, None, [stored(pa.array(values))])
    file.close()
    table = pq.read_table(path)
    assert table.schema.field("column.n").type == kept
    assert table["column.n"].to_pylist() == flat
    assert table["row"].to_pylist() == list(range(len(flat)))
    assert pq.ParquetFile(path).num_row_groups == len(groups)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_numbers_that_no_type_holds_together() -> None:
    columns = [pa.array([2**53 + 1]), pa.array([0.5])]
    with pytest.raises(UsageError, match=r"'n' holds values of several kinds.*9007199254740993"):
        joined("n", columns)
    assert joined("n", [pa.array([2**53]), pa.array([0.5])]).to_pylist() == [2**53, 0.5]
    assert differing(pa.array([0.5]), pa.array([2**53 + 1])) == [0]
