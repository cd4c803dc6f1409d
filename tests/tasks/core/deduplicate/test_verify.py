"""`verify` finds lists of copies that are wrong although their hashes are right."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.format.duplicates import duplicates_path
from streaming_ext.format.schema import FileRecord
from streaming_ext.format.shuffled import SOURCES_PATH
from tests.tasks.core.build_dataset import Forger, build_from, found_in, require_sound
from tests.tasks.core.check.damage import check

Table = dict[str, list[Any]]


class CopiesForger(Forger):
    """Changes lists of copies too."""

    def copies(self, part: int) -> Table:
        table: Table = pq.read_table(self.root / duplicates_path(part)).to_pydict()
        return table

    def set_copies(self, part: int, table: Table, **counts: int) -> None:
        path = duplicates_path(part)
        schema = pq.read_schema(self.root / path)
        pq.write_table(pa.table(table, schema=schema), self.root / path)
        listed = FileRecord.of(path, (self.root / path).read_bytes())
        self.change(part, duplicates=listed, **counts)
        self.seal()

    def set_digests(self, path: str, table: pa.Table) -> None:
        pq.write_table(table, self.root / path)
        file = FileRecord.of(path, (self.root / path).read_bytes()).model_dump()
        self.seal(lambda manifest: manifest["digests"][0].update(files=[file]))

    def name_another_first(self) -> int:
        """Name another document of part 0 as the first of a copy in part 2; return its row."""
        table = self.copies(2)
        kept = self.documents(0)["row"]
        table["first_part"][0] = 0
        table["first_row"][0] = next(row for row in kept if row != table["first_row"][0])
        self.set_copies(2, table)
        row: int = table["row"][0]
        return row


@pytest.fixture(scope="module")
def sound(tmp_path_factory, lines) -> Path:
    root = tmp_path_factory.mktemp("sound") / "out"
    return build_from(lines, root, deduplicate="exact")


@pytest.fixture
def forger(sound, tmp_path) -> CopiesForger:
    return CopiesForger(shutil.copytree(sound, tmp_path / "out"))


def problems(forger: Forger, *, deep: bool = False) -> str:
    return "\n".join(map(str, check(forger.root, deep=deep).findings))


def test_a_byte(forger) -> None:
    file = forger.root / duplicates_path(1)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert "duplicates/00001.parquet: its content hash is" in problems(forger)
    file.unlink()
    assert "duplicates/00001.parquet: missing" in problems(forger)


def other_count(forger: CopiesForger, table: Table) -> None:
    forger.change(2, duplicate_tokens=forger.records[2].duplicate_tokens + 1)


def first_copy_behind(forger: CopiesForger, table: Table) -> None:
    table["first_part"][0], table["first_row"][0] = 2, table["row"][0]


def copy_that_stayed(forger: CopiesForger, table: Table) -> None:
    table["row"][0] = forger.documents(2)["row"][0]


def row_that_does_not_exist(forger: CopiesForger, table: Table) -> None:
    table["row"][-1] = 10_000


def first_copy_that_went(forger: CopiesForger, table: Table) -> None:
    table["first_part"][0], table["first_row"][0] = 1, forger.copies(1)["row"][0]


OTHER_COPIES = "duplicates/00002.parquet: lists other copies"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_count, f"{OTHER_COPIES} than are recorded"),
        (first_copy_behind, OTHER_COPIES),
        (copy_that_stayed, OTHER_COPIES),
        (row_that_does_not_exist, OTHER_COPIES),
        (first_copy_that_went, "of part or source 1 as a first copy"),
    ],
)
def test_impossible_copies(change, said, forger) -> None:
    table = forger.copies(2)
    change(forger, table)
    forger.set_copies(2, table)
    assert said in problems(forger)


def test_no_copy_by_the_texts(forger) -> None:
    """The list is consistent; only the sources show that it is wrong."""
    row = forger.name_another_first()
    assert not problems(forger)
    found = problems(forger, deep=True)
    assert f"row {row} is no copy of row" in found


def test_other_lengths_of_copies(forger) -> None:
    """Their sum is the same; only the sources show that they are wrong."""
    table = forger.copies(2)
    table["tokens"][0] += 1
    table["tokens"][1] -= 1
    forger.set_copies(2, table)
    assert not problems(forger)
    length = table["tokens"][0]
    said = f"row {table['row'][0]}: tokens is {length}, made again {length - 1}"
    assert f"duplicates/00002.parquet: {said}" in problems(forger, deep=True)


def test_a_damaged_table_of_sources_is_the_only_finding(tmp_path, lines) -> None:
    options = {"deduplicate": "exact", "shuffle": "documents"}
    root = build_from(lines, tmp_path / "out", **options)
    (root / SOURCES_PATH).write_bytes((root / SOURCES_PATH).read_bytes()[:-1])
    assert found_in(root, deep=True) == [SOURCES_PATH]


@pytest.mark.parametrize("change", ["another document", "another order", "another text"])
def test_hashes_of_other_documents(forger, change) -> None:
    (kept,) = forger.manifest.digests
    path = kept.files[0].path
    table = pq.read_table(forger.root / path)
    if change == "another order":
        table = table.take([1, 0, *range(2, len(table))])
    else:
        number, name = (3, "row") if change == "another document" else (1, "low")
        values = table[name].to_numpy().copy()
        values[4] += 1000
        table = table.set_column(number, name, [values])
    forger.set_digests(path, table)
    if change == "another text":  # only the sources and copies of that text show it
        require_sound(forger.root)
        assert "digests" in found_in(forger.root, deep=True)
    else:
        assert found_in(forger.root) == [path if change == "another order" else "digests"]
