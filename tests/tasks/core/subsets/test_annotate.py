"""Columns added to a published dataset: each document gets its own values, nothing else changes."""

import gzip
import json
import logging
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import ConfigMismatchError, CorruptDatasetError, UsageError
from streaming_ext.format.layout import BUILD, MANIFEST
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.store import open_storage
from tasks.core.check.inspect import describe
from tasks.core.derive.annotate import AnnotateBuild, plan_annotate
from tasks.core.derive.config import AnnotateConfig
from tasks.core.derive.value_table import ValueTable, as_names
from tasks.core.reading.dataset_files import read_dataset
from tasks.core.reading.documents import PartOfDataset
from tests.command_line import file_hashes
from tests.streaming_ext.order.test_grown import opened, steps
from tests.tasks.core import running
from tests.tasks.core.build_dataset import Forger, build_from, manifest_of, require_sound
from tests.tasks.core.check.damage import check, flip
from tests.tasks.core.extending.extended import extended
from tests.tasks.core.moving.moved import copied, merged
from tests.tasks.core.subsets.with_columns import Document, documents_of, subset, write

Origin = tuple[str, int]


def config_of(dataset: Path | str, table: Path | str, **options: Any) -> AnnotateConfig:
    return AnnotateConfig(dataset=str(dataset), table=str(table), **options)


def annotate(dataset: Path | str, table: Path | str, **options: Any) -> AnnotateBuild:
    return running.complete(plan_annotate, config_of(dataset, table, **options))


def topic(document: Document) -> str | None:
    return ("web", "code", None)[document.row % 3]


def quality(document: Document) -> float:
    return len(document.text) / 10


def table_of(documents: list[Document], path: Path) -> Path:
    """Write a table of documents' topic and quality, in another order than theirs."""
    rows = [
        {"quality": quality(each), "source": each.source, "row": each.row, "topic": topic(each)}
        for each in sorted(documents, key=lambda each: each.text)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def values_of(root: Path, column: str) -> dict[Origin, Any]:
    """Return the values of an added column, by source and row."""
    storage = open_storage(str(root))
    _, manifest, records = read_dataset(storage)
    found = {}
    for record in records:
        part = PartOfDataset(storage, manifest, record.part)
        values = part.added()[column].to_pylist()
        origins = part.source_rows()
        table = pq.read_table(root / record.documents.path).to_pydict()
        assert len(table["row"]) == len(values)
        for first, value in enumerate(values):
            own = origins.of(table["row"][first], table.get("source", table["row"])[first])
            found[own.source, own.row] = value
    return found


def expected(documents: list[Document]) -> dict[str, Mapping[Origin, Any]]:
    return {
        "topic": {(each.source, each.row): topic(each) for each in documents},
        "quality": {(each.source, each.row): quality(each) for each in documents},
    }


@pytest.fixture
def copy(dataset, tmp_path) -> Path:
    """A dataset of each kind, which a test may change."""
    return Path(shutil.copytree(dataset, tmp_path / "dataset"))


def test_each_document_gets_its_own_values(copy, tmp_path) -> None:
    documents, before = documents_of(copy), file_hashes(copy)
    table = table_of(documents, tmp_path / "table.parquet")
    annotate(copy, table)
    after = file_hashes(copy)
    assert {path: after.get(path) for path in before if path != MANIFEST} == {
        path: content for path, content in before.items() if path != MANIFEST
    }
    replaced = before[MANIFEST]
    assert after[f"generations/{replaced}.json"] == replaced
    require_sound(copy, generation=replaced)
    assert {column: values_of(copy, column) for column in ("topic", "quality")} == expected(
        documents
    )
    require_sound(copy, deep=True, deep_documents=10**6)
    assert describe(open_storage(str(copy))).facts()["added"] == ["quality", "topic"]
    assert annotate(copy, table).published

    chosen = subset(copy, tmp_path / "web", where="topic == 'web' and quality >= 10")
    assert chosen == [each for each in documents if topic(each) == "web" and quality(each) >= 10]
    assert chosen
    again = subset(tmp_path / "web", tmp_path / "best", where="quality > 20 and score is not None")
    assert len(again) < len(chosen)
    copied(copy, tmp_path / "copy")
    require_sound(tmp_path / "copy")
    assert values_of(tmp_path / "copy", "topic") == values_of(copy, "topic")


def test_characters_are_counted(copy, tmp_path) -> None:
    documents = documents_of(copy)
    with pytest.raises(UsageError, match="`shardmill annotate --characters`"):
        subset(copy, tmp_path / "long", where="characters > 300")
    config = AnnotateConfig(dataset=str(copy), characters=True, workers=1)
    running.complete(plan_annotate, config)
    lengths = {(each.source, each.row): len(each.text) for each in documents}
    assert values_of(copy, "characters") == lengths
    assert running.complete(plan_annotate, config).published
    require_sound(copy, deep=True, deep_documents=10**6)
    long = subset(copy, tmp_path / "long", where="characters > 300")
    assert long == [each for each in documents if len(each.text) > 300]
    assert 0 < len(long) < len(documents)


# --- one dataset


KEPT = "score,id,name,double"


def write_named(path: Path, seed: int) -> Path:
    """Write a source whose documents have an id as text, as whole number and as double."""
    write(path, seed)
    table = pq.read_table(path)
    ids = [seed * 1000 + row for row in range(len(table))]
    for name, column in (
        ("id", pa.array(ids)),
        ("name", pa.array([f"document {each}" for each in ids])),
        ("double", pa.array(ids, pa.float64())),
    ):
        table = table.append_column(name, column)
    pq.write_table(table, path)
    return path


@pytest.fixture
def plain(tmp_path) -> Path:
    """A dataset of two parts of one file each."""
    (tmp_path / "sources").mkdir()
    for number in range(2):
        write_named(tmp_path / f"sources/{number}.parquet", number)
    return build_from(tmp_path / "sources", tmp_path / "plain", keep_columns=KEPT)


@pytest.mark.parametrize("key", ["id", "name", "double"])
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl", ".jsonl.gz"])
def test_documents_named_by_a_column(plain, key, suffix, tmp_path) -> None:
    documents = documents_of(plain)
    path = tmp_path / f"table{suffix}"
    rows = []
    for each in reversed(documents):
        name: Any = int(Path(each.source).stem) * 1000 + each.row
        name = f"document {name}" if key == "name" else name
        rows.append({key: name, "topic": topic(each), "quality": quality(each)})
    table = pa.Table.from_pylist(rows)
    if suffix == ".parquet":
        pq.write_table(table, path)
    elif suffix == ".csv":
        pa.csv.write_csv(table, path)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(lines) if suffix.endswith(".gz") else lines)
    annotate(plain, path, key=key)
    found = {column: values_of(plain, column) for column in ("topic", "quality")}
    assert found == expected(documents)
    require_sound(plain)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize(
    "names", [["007", "7"], ["1.0", "1e1"], ["2024-05-01", "2024-05-01 00:00:00"], ["true", "x"]]
)
def test_texts_that_look_like_something_else(names, suffix, tmp_path) -> None:
    """Names and values in files without types: no number, date or truth value changes them."""
    table = pa.table({"id": names, "text": ["first text", "second text"]})
    pq.write_table(table, tmp_path / "source.parquet")
    root = build_from(tmp_path / "source.parquet", tmp_path / "data", keep_columns="id")
    path, date = tmp_path / f"table{suffix}", "2024-05-01T00:00:00Z"
    rows = [{"id": name, "n": n, "date": date} for n, name in enumerate(names)]
    if suffix == ".csv":
        pa.csv.write_csv(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    annotate(root, path, key="id")
    assert [*values_of(root, "n").values()] == [0, 1]
    assert [*values_of(root, "date").values()] == [date, date]


def test_parts_without_a_document_or_without_a_name(tmp_path) -> None:
    (tmp_path / "sources").mkdir()
    for file, names, length in (("0", ["a", "b"], 9), ("1", [None, None], 9), ("2", ["c", "d"], 1)):
        table = pa.table({"name": pa.array(names, pa.string()), "text": ["x y z "[:length]] * 2})
        pq.write_table(table, tmp_path / f"sources/{file}.parquet")
    root = build_from(
        tmp_path / "sources", tmp_path / "data", keep_columns="name", min_characters=3
    )
    pq.write_table(pa.table({"name": ["b", "a"], "n": [1, 2]}), tmp_path / "table.parquet")
    with pytest.raises(UsageError, match="2 of 4 documents of .* have no row"):
        annotate(root, tmp_path / "table.parquet", key="name")
    annotate(root, tmp_path / "table.parquet", key="name", partial=True)
    assert [*values_of(root, "n").values()] == [2, 1, None, None]
    require_sound(root, deep=True)


def test_a_table_may_lack_documents_and_have_others(plain, tmp_path, caplog) -> None:
    documents = documents_of(plain)
    other = documents[0]._replace(row=9999)
    table = table_of([*documents[:10], other], tmp_path / "table.parquet")
    words = (
        f"{len(documents) - 10} of {len(documents)} documents of .* have no row in .* "
        r"\(first: row \d+ of .*0\.parquet\), and 1 of "
        "its 11 rows are of no document"
    )
    before = file_hashes(plain)
    with pytest.raises(UsageError, match=f"{words}.*--partial"):
        annotate(plain, table)
    assert file_hashes(plain) == before
    with caplog.at_level(logging.WARNING):
        annotate(plain, table, partial=True)
    assert re.search(words, caplog.text)
    missing = {(each.source, each.row): None for each in documents[10:]}
    assert values_of(plain, "quality") == {**expected(documents[:10])["quality"], **missing}
    assert len(subset(plain, tmp_path / "few", where="quality is not None")) == 10


ROW = {"source": "0.parquet", "row": 0, "topic": "web"}


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            [ROW, ROW],
            {},
            r"several rows of one document: source '0\.parquet', row 0 is in it again",
        ),
        ([{"source": "x", "topic": 1}], {}, "no column 'row'; its columns are source, topic"),
        ([{"source": "x", "row": 1}], {}, "adds no column: it has source, row alone"),
        ([{**ROW, "score": 1}], {}, "has a column 'score' already"),
        ([{**ROW, "x": [1]}], {}, r"column 'x' is of type list<.*; texts, numbers"),
        ([{**ROW, "x": "y" * 2**17}], {}, "row 0 of column 'x' has more than 65536 bytes"),
        ([{**ROW, "row": None}, ROW], {}, "column 'row' holds nulls"),
        ([{**ROW, "row": "first"}], {}, "column 'row': Failed to parse string"),
        ([ROW], {"key": "topic"}, "has no column 'topic', it has .*name.* Correct --key"),
        ([ROW], {"key": "name"}, "no column 'name'; its columns are"),
        ([], {}, "has no row|no column"),
    ],
)
def test_bad_tables_are_refused(plain, rows, options, message, tmp_path) -> None:
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "table.parquet")
    before = file_hashes(plain)
    with pytest.raises(UsageError, match=message):
        annotate(plain, tmp_path / "table.parquet", **options)
    assert file_hashes(plain) == before


def test_names_of_files_and_rows_must_be_known(tmp_path) -> None:
    """The end of a URL may fit two files; the rows of a later part need the parts before it."""
    (tmp_path / "sources/a").mkdir(parents=True)
    write(tmp_path / "sources/0.parquet", 0)
    write(tmp_path / "sources/a/0.parquet", 1)
    root = build_from(tmp_path / "sources", tmp_path / "data", part_size="4KiB")
    pq.write_table(pa.Table.from_pylist([ROW]), tmp_path / "table.parquet")
    with pytest.raises(UsageError, match=r"source '0\.parquet' may be .* or .*: give more of its"):
        annotate(root, tmp_path / "table.parquet")
    subset(root, tmp_path / "long", where="tokens > 150")
    pq.write_table(pa.Table.from_pylist([{**ROW, "source": "a/0.parquet"}]), tmp_path / "b.parquet")
    with pytest.raises(UsageError, match=r"behind byte [0-9,]+ alone, so their rows .* --key"):
        annotate(tmp_path / "long", tmp_path / "b.parquet")


def test_files_that_are_no_tables_are_refused(plain, tmp_path) -> None:
    (tmp_path / "table.parquet").write_bytes(b"no table")
    for name, message in {
        "table.parquet": "cannot be read",
        "table.xlsx": "There is no file",
    }.items():
        with pytest.raises(UsageError, match=message):
            annotate(plain, tmp_path / name)
    (tmp_path / "table.txt").write_text("x")
    with pytest.raises(UsageError, match=r"must end in \.parquet, \.csv, \.jsonl"):
        annotate(plain, tmp_path / "table.txt")


def test_a_killed_run_leaves_the_dataset_as_it_was(plain, tmp_path) -> None:
    documents, whole = documents_of(plain), shutil.copytree(plain, tmp_path / "whole")
    table = table_of(documents, tmp_path / "table.parquet")
    annotate(whole, table)
    before = file_hashes(plain)
    other = table_of(documents, tmp_path / "other.parquet")
    pq.write_table(pq.read_table(other).drop_columns("topic"), other)
    for each in (other, table):  # the second removes the values of the first
        plan, storage = running.planned(plan_annotate, config_of(plain, each))
        running.do_parts(plan, storage, [0])
        storage.close()
        left = file_hashes(plain)
        assert {path: left[path] for path in before} == before
        assert [path.split("/")[0] for path in left.keys() - before.keys()] == ["columns"]
        require_sound(plain)
        assert manifest_of(plain).columns == manifest_of(plain).spec.keep_columns
    annotate(plain, table)
    assert file_hashes(plain) == file_hashes(whole)
    assert not (plain / BUILD).exists()


def test_another_command_under_way_is_finished_first(plain, tmp_path) -> None:
    table = table_of(documents_of(plain), tmp_path / "table.parquet")
    (plain / BUILD).parent.mkdir(exist_ok=True)
    (plain / BUILD).write_text('{"kind": "extend", "identity": {}}\n')
    with pytest.raises(ConfigMismatchError, match="`shardmill extend` of .* is not finished"):
        annotate(plain, table)


def test_values_of_other_documents_or_columns_are_named(plain, tmp_path) -> None:
    """The manifest lists the hash of the wrong values."""
    annotate(plain, table_of(documents_of(plain), tmp_path / "table.parquet"))
    file = min(plain.glob("columns/*/*"))
    table = pq.read_table(file)
    for wrong in (table.slice(1), table.select(["column.topic"])):
        pq.write_table(wrong, file)
        path = file.relative_to(plain).as_posix()
        record, forger = FileRecord.of(path, file.read_bytes()), Forger(plain)
        (added,) = forger.manifest.added
        files = [record if each.path == path else each for each in added.files]
        changed = added.model_copy(update={"files": tuple(files)})
        forged = forger.manifest.model_copy(update={"added": (changed,)})
        (plain / MANIFEST).write_bytes(to_json(forged))
        assert [finding.file for finding in check(plain).findings] == [path]
        with pytest.raises(CorruptDatasetError, match=f"{path}.*expected"):
            subset(plain, tmp_path / "none", where="topic == 'web'")


def test_lost_and_damaged_values_are_put_again(plain, tmp_path) -> None:
    table = table_of(documents_of(plain), tmp_path / "table.parquet")
    annotate(plain, table)
    before, (first, second) = file_hashes(plain), sorted(plain.glob("columns/*/*"))
    flip(first)
    second.unlink()
    named = {finding.file for finding in check(plain).findings}
    assert named >= {path.relative_to(plain).as_posix() for path in (first, second)}
    annotate(plain, table)
    assert file_hashes(plain) == before


def test_states_of_training_hold_and_domains_may_be_new_columns(plain, tmp_path) -> None:
    documents = documents_of(plain)
    _, state = steps(opened(plain), 3)

    def left() -> Counter[bytes]:
        loader = opened(plain)
        loader.load_state_dict(state)
        return steps(loader, None)[0]

    before = left()
    annotate(plain, table_of(documents, tmp_path / "table.parquet"))
    assert left() == before
    assert before

    _, state = steps(opened(plain, domain_by="column:topic"), None)
    counted: Counter[str] = Counter()
    for each in documents:
        if each.split == "train":
            counted[topic(each) or "(nothing)"] += each.tokens + 1
    assert state["domains"]["streams"][0]["tokens"] == counted


def test_streams_of_copies_with_other_values_share_no_choice(plain, tmp_path) -> None:
    """A map in the cache belongs to the values that it was made from."""
    other = tmp_path / "other"
    copied(plain, other)
    documents = documents_of(plain)
    annotate(plain, table_of(documents, tmp_path / "one.parquet"))
    rows = [
        {"source": each.source, "row": each.row, "topic": topic(each._replace(row=each.row + 1))}
        for each in documents
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "other.parquet")
    annotate(other, tmp_path / "other.parquet")
    for root, shift in ((plain, 0), (other, 1)):
        cache = tmp_path / "cache"
        stream = TokenStream(remote=str(root), local=cache, where="topic == 'web'")
        dataset = StreamingTokenDataset(
            streams=[stream], batch_size=1, domain_by="column:topic", dp_rank=0, dp_world_size=1
        )
        (chosen,) = dataset.source.chosen
        assert chosen.documents == sum(
            (each.row + shift) % 3 == 0 for each in documents if each.split == "train"
        )
        _, state = steps(StreamingTokenLoader(dataset), None)
        assert state["domains"]["streams"][0]["tokens"].keys() == {"web"}


def test_a_dataset_grows_after_it_was_annotated(plain, tmp_path) -> None:
    """New documents have no values until another table gives them some."""
    documents = documents_of(plain)
    table = table_of(documents, tmp_path / "table.parquet")
    annotate(plain, table)
    old = manifest_of(plain)
    write_named(tmp_path / "more.parquet", 7)
    extended(plain, tmp_path / "more.parquet")
    require_sound(plain, deep=True)
    every = documents_of(plain)
    missing = {(each.source, each.row): None for each in every if each not in documents}
    assert values_of(plain, "topic") == {**expected(documents)["topic"], **missing}
    length = table_of(every, tmp_path / "every.parquet")
    renamed = pq.read_table(length).rename_columns(["length", "source", "row", "kind"])
    pq.write_table(renamed, length)
    annotate(plain, length)
    assert values_of(plain, "kind") == expected(every)["topic"]
    require_sound(plain, deep=True)
    (older,) = manifest_of(plain).generations
    require_sound(plain, generation=older.manifest.xxh128)
    older_file, content = plain / older.manifest.path, (plain / older.manifest.path).read_bytes()
    assert manifest_of(plain).added[:1] == old.added
    older_file.unlink()
    extended(plain, tmp_path / "more.parquet")  # puts the file again
    assert older_file.read_bytes() == content


def test_annotated_datasets_are_merged(plain, tmp_path) -> None:
    (tmp_path / "others").mkdir()
    shutil.copytree(tmp_path / "sources", tmp_path / "others", dirs_exist_ok=True)
    other = build_from(tmp_path / "others", tmp_path / "other", keep_columns=KEPT)
    both = {}
    for root in (plain, other):
        documents = documents_of(root)
        annotate(root, table_of(documents, tmp_path / f"{root.name}.parquet"))
        both |= expected(documents)["quality"]
    merged([plain, other], tmp_path / "both")
    require_sound(tmp_path / "both", deep=True)
    assert values_of(tmp_path / "both", "quality") == both
    rows = [
        {"source": source, "row": row, "twice": 2 * each} for (source, row), each in both.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "more.parquet")
    annotate(tmp_path / "both", tmp_path / "more.parquet")
    require_sound(tmp_path / "both")
    third = build_from(tmp_path / "others", tmp_path / "third", keep_columns=KEPT)
    with pytest.raises(ConfigMismatchError, match="columns: .*plain has .*'quality'.*third has"):
        merged([plain, third], tmp_path / "all")


def test_what_is_made_again_keeps_its_columns(plain, tmp_path) -> None:
    annotate(plain, table_of(documents_of(plain), tmp_path / "table.parquet"))
    before = file_hashes(plain)
    shutil.rmtree(plain / "train/00001")
    build_from(tmp_path / "sources", plain, keep_columns=KEPT)
    assert file_hashes(plain) == before


def test_datasets_and_tables_in_a_bucket(plain, bucket, tmp_path) -> None:
    documents = documents_of(plain)
    table = table_of(documents, tmp_path / "table.parquet")
    data, tables = f"s3://{bucket}/data", f"s3://{bucket}/tables"
    copied(plain, data)
    open_storage(tables).put("table.parquet", table.read_bytes())
    annotate(data, f"{tables}/table.parquet")
    copied(data, tmp_path / "back")
    annotate(plain, table)
    assert file_hashes(tmp_path / "back") == file_hashes(plain)


def test_rows_are_found_by_all_of_their_names(tmp_path) -> None:
    """Several names may have one half in common."""
    random = np.random.default_rng(3)
    names = np.unique(random.integers(0, 8, (200, 2)).astype(np.uint64), axis=0)
    random.shuffle(names)
    asked = as_names(names)
    own = asked[:20]
    made, again = ValueTable.of(own, pa.table({"column.x": np.arange(20)}))
    assert not len(again)
    made.save(tmp_path / "table.arrow")
    for table in (made, ValueTable.open(tmp_path / "table.arrow")):
        rows = table.find(asked)
        values = [table.values["column.x"][row].as_py() if row >= 0 else None for row in rows]
        assert values == [*range(20), *[None] * (len(asked) - 20)]
