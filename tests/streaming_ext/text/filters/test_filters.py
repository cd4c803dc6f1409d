"""Filters drop the same documents in every format, and count them."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.filters import Filters
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.formats import format_of
from tests.streaming_ext.text import reading
from tests.streaming_ext.text.readers.test_arrow import WRITERS
from tests.streaming_ext.text.readers.test_contract import (
    EACH_FORMAT,
    Kind,
    Row,
    json_lines,
    sampled,
)
from tests.streaming_ext.text.reading import look, looked_at

ROWS: list[Row] = [
    {"title": "en", "meta": {"n": 3, "text": "stays, long enough"}},
    {"title": "de", "meta": {"n": 9, "text": "another language"}},
    {"title": "en", "meta": {"n": 1, "text": "too few"}},
    {"title": None, "meta": {"n": 9, "text": "no language"}},
    {"title": "en", "meta": {"n": 4, "text": None}},
    {"title": "en", "meta": {"n": 4, "text": "short"}},
    {"title": "en", "meta": {"n": 4, "text": "äöüß"}},
    {"title": "en", "meta": {"n": 5, "text": "stays as well, and is long"}},
    {"title": "en", "meta": {"n": 5, "text": "too long by ä" * 2}},
]
WHERE = "title == 'en' and meta.n >= 3"
OPTIONS = ReadOptions(
    columns=("meta.text",),
    filters=Filters(where=WHERE, min_bytes=7, max_bytes=27, min_characters=5),
)
DROPPED = {"where": 3, "min_bytes": 1, "max_bytes": 1, "min_characters": 1}


def read(
    path: Path, options: ReadOptions, batch_bytes: int = 2**20
) -> tuple[dict[int, str], Counter[str], int]:
    """Return the texts by row, the counts of dropped rows by filter, and the number of nulls."""
    found = reading.read(path, options, batch_bytes)
    return dict(found.good), found.dropped, found.nulls


@EACH_FORMAT
def test_in_every_format(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"other{kind.suffix}"
    kind.write_rows(path, ROWS)
    expected = {0: "stays, long enough", 7: "stays as well, and is long"}
    for batch_bytes in (9, 2**20):
        assert read(path, OPTIONS, batch_bytes) == (expected, DROPPED, 1)
        assert sampled(looked_at(path), OPTIONS, batch_bytes) == list(expected.values())
    options = ReadOptions(columns=("meta.text",), filters=Filters(where="title is None"))
    assert read(path, options)[0] == {3: "no language"}
    options = ReadOptions(columns=("meta.text",), filters=Filters(where="language == 'en'"))
    with pytest.raises(UsageError, match=r"has no column 'language'.*title"):
        look(path, options=options)


@pytest.mark.parametrize(
    ("where", "stays"),
    [
        (None, True),
        ("lang is None", True),
        ("lang == 'en'", False),
        ("not lang", False),
        ("lang != 5 or n == 1", True),
        ("lang and n == 1", False),
        ("lang in [1.5]", False),
    ],
)
def test_a_column_without_any_value(tmp_path: Path, where: str | None, stays: bool) -> None:
    row: Row = {"title": None, "lang": None, "n": 1, "text": "a"}
    (tmp_path / "x.jsonl").write_bytes(json_lines([row]))
    for name, write in WRITERS.items():
        write(tmp_path / name, pa.Table.from_pylist([row]))
    for name in ("x.jsonl", *WRITERS):
        for columns in (("text",), ("title", "text")):
            options = ReadOptions(columns=columns, filters=Filters(where=where))
            format_of(name).check(looked_at(tmp_path / name), options)
            texts, dropped, _ = read(tmp_path / name, options)
            assert (texts, dropped["where"]) == (({0: "a"}, 0) if stays else ({}, 1))


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_whole_number_too_large_for_a_double_is_infinite(tmp_path: Path, digits: int) -> None:
    (tmp_path / "x.jsonl").write_text('{"n": ' + "7" * digits + ', "text": "a"}\n\n')
    for where, stays in (("n > 5", True), ("n < 5", False)):
        texts, _, _ = read(tmp_path / "x.jsonl", ReadOptions(filters=Filters(where=where)))
        assert texts == ({0: "a"} if stays else {})


@EACH_FORMAT
def test_another_type_is_an_error_that_names_the_place(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"other{kind.suffix}"
    kind.write_rows(path, ROWS)
    cells = format_of(path.name).name in {"csv", "tsv"}  # their cells are texts
    asked = "meta.text > 5" if cells else "meta.n == 'three'"
    options = ReadOptions(
        columns=("title" if cells else "meta.text",), filters=Filters(where=asked)
    )
    if cells:
        with pytest.raises(SourceError, match="row 0: 'meta.text' is no double"):
            read(path, options)
        return
    with pytest.raises((UsageError, SourceError), match="'meta.n' is of type .* with a text"):
        read(path, options)


def test_plain_text_has_no_columns(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("text")
    options = ReadOptions(filters=Filters(where="language == 'en'"))
    assert read(tmp_path / "x.txt", options)[:2] == ({}, {"where": 1})
    with pytest.raises(UsageError, match="plain text, has no column 'language'"):
        look(tmp_path / "x.txt", options=options)


@pytest.mark.parametrize(
    "where",
    [
        "score != 0.1",
        "not (score < 0.5)",
        "score not in [0.1]",
        "not score == 0.1 and n == 1",
        "n == 1 and (n > 5 or not score == 0.1)",
        "score > 0.05",
    ],
)
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_nan_is_a_value(tmp_path: Path, where: str, kind: pa.DataType) -> None:
    scores = pa.array([0.1, 0.1, float("nan"), 0.1], pa.float64()).cast(kind)
    table = pa.table({"text": ["a", "b", "c", "d"], "score": scores, "n": [1] * 4})
    pq.write_table(table, tmp_path / "x.parquet")
    found = read(tmp_path / "x.parquet", ReadOptions(filters=Filters(where=where)))[0]
    assert (2 in found) == (where != "score > 0.05")


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"min_tokens": 0}, "greater than 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "no document would stay"),
        ({"where": "language ="}, "not understood"),
    ],
)
def test_senseless_ones_are_refused(filters: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Filters(**filters)


def test_a_column_alone_is_a_condition() -> None:
    assert Filters(where="language").given() == {"where": "language"}
