"""A source format is one file: a toy of twenty lines goes through the whole core."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.text import formats
from streaming_ext.text.documents.document_rows import DocumentBatch, DocumentRows
from streaming_ext.text.documents.files import SourceBytes
from streaming_ext.text.documents.source_format import SourceFormat
from tasks.core.config import ShardConfig
from tasks.core.shard.sources import find_sources
from tests.tasks.core.build_dataset import build_dataset, build_from, require_sound, streams_of

WORDS = [["one two", None, "three"], ["", "four five six"]]


class ToyFormat(SourceFormat):
    """One document per line; `~` stands for null."""

    name = "toy"
    suffixes = (".toy",)

    def check(self, file: SourceBytes, options: Any) -> None:
        (column,) = options.columns
        if column not in file.read(0, file.size).decode().partition("\n")[0].split():
            raise UsageError(f"{file.name}: no column {column!r}.")

    def documents(self, rows: DocumentRows) -> Iterator[DocumentBatch]:
        file = rows.file
        _, *lines = file.read(0, file.size).decode().splitlines()
        for row, line in enumerate(lines):
            if line.endswith("\\"):
                raise SourceError(f"{file.name}: damaged from row {row} on.")
            yield from rows.batches(
                [pa.array([None if line == "~" else line], pa.large_string())],
                (row + 1) / len(lines),
            )


@pytest.fixture
def toys(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(formats, "FORMATS", [*formats.FORMATS, ToyFormat()])
    folder = tmp_path / "toys"
    folder.mkdir()
    for number, words in enumerate(WORDS):
        lines = ["text other", *("~" if word is None else word for word in words)]
        (folder / f"{number:03}.toy").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_goes_through_the_whole_core(toys, tmp_path) -> None:
    root = build_from(toys, tmp_path / "dataset")
    report = require_sound(root, deep=True)
    assert report.checked.source_rows == sum(map(len, WORDS))
    assert report.checked.retokenized == 3
    same = build_dataset(tmp_path / "same", WORDS)
    assert streams_of(root) == streams_of(same)


def test_a_check_refuses_before_any_work(toys) -> None:
    config = ShardConfig(sources=(str(toys),), output="o", tokenizer="t", text_column="body")
    with pytest.raises(UsageError, match=r"000\.toy: no column 'body'"):
        find_sources(config, config.read_options)


def test_damage_is_named(toys, tmp_path) -> None:
    (toys / "001.toy").write_text("text\nfine\nbroken\\\n")
    with pytest.raises(SourceError, match=r"001\.toy: damaged from row 1 on"):
        build_from(toys, tmp_path / "dataset")
