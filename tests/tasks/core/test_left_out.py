"""Rows that are no documents are counted in all output; a source with no document is an error."""

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.terminal.run_progress import show_published
from streaming_ext.base.errors import SourceError
from streaming_ext.store import LocalStorage
from tasks.core.check.inspect import describe
from tests.streaming_ext.text.reading import tar
from tests.tasks.core.build_dataset import build_from, manifest_of, require_sound
from tests.tasks.core.check.damage import printed

GOOD = [{"text": f"text number {n}, long enough to stay"} for n in range(10)]
PHASES: dict[str, dict[str, Any]] = {
    "in order": {},
    "together": {"min_part_size": "1MiB"},
    "cut": {"part_size": "1KiB"},
    "shuffled": {"shuffle": "documents"},
    "deduplicated": {"deduplicate": "exact"},
}
EACH_PHASE = pytest.mark.parametrize("phases", PHASES.values(), ids=PHASES)


def lines(rows: Iterable[object]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write(folder: Path, **files: bytes) -> Path:
    """Write JSON Lines files with these contents."""
    folder.mkdir()
    for name, data in files.items():
        (folder / f"{name}.jsonl").write_bytes(data)
    return folder


@EACH_PHASE
def test_they_are_counted_in_all_that_is_shown(tmp_path: Path, phases: dict[str, Any]) -> None:
    others: list[object] = [{"Text": "a"}] * 100 + [{"text": None}, {"text": ""}, {"text": 5}]
    short = [{"text": f"text {n}", "language": "de"} for n in range(30)]
    sources = write(tmp_path / "sources", a=lines([*GOOD, *others]), b=lines(short))
    root = build_from(
        sources, tmp_path / "out", on_bad_document="skip", where="language is None", **phases
    )
    require_sound(root, deep=True)
    counts = manifest_of(root).row_counts
    words = "101 without text, 1 without tokens, 1 unreadable, 30 dropped by --where"
    assert (counts.rows, counts.left_out, counts.left_out_text) == (143, 133, words)
    shown = printed(lambda manifest, to: show_published(manifest, "out", to), manifest_of(root))
    assert f"left out of 143 rows: {words}" in " ".join(shown.split())
    assert describe(LocalStorage(root)).documents == 10
    if phases in ({}, PHASES["deduplicated"]):
        assert f"no document is left of {sources}/b.jsonl." in " ".join(shown.split())


def null_parquet(path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([None, None], pa.string())}), path)


SILENT: dict[str, Callable[[Path], object]] = {
    "x.jsonl": lambda path: path.write_bytes(lines([{"Text": "a" * 90}] * 40)),
    "y.jsonl": lambda path: path.write_bytes(lines([{"text": 5}, {"text": ""}])),
    "x.parquet": null_parquet,
    "x.tar": lambda path: path.write_bytes(tar([("001 v2.0.txt", b"a"), ("002 v2.0.txt", b"b")])),
    "x.csv": lambda path: path.write_bytes(b"id,text\n1,\n2,\n"),
}


@EACH_PHASE
@pytest.mark.parametrize("name", SILENT)
def test_a_source_without_a_text_is_an_error(
    tmp_path: Path, name: str, phases: dict[str, Any]
) -> None:
    sources = write(tmp_path / "sources", a=lines(GOOD))
    SILENT[name](sources / name)
    with pytest.raises(SourceError, match=rf"{name}: no document in its \d+ rows: .*\d+ .*--text"):
        build_from(sources, tmp_path / "out", on_bad_document="skip", **phases)
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_source_that_holds_nothing_is_none_that_lost_something(tmp_path: Path) -> None:
    sources = write(tmp_path / "sources", a=lines(GOOD), b=b"")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), sources / "c.parquet")
    root = build_from(sources, tmp_path / "out")
    assert manifest_of(root).row_counts.left_out_text == ""
    (tmp_path / "texts").mkdir()
    for stem, data in (("a", b"some text"), ("b", b"")):
        (tmp_path / f"texts/{stem}.txt").write_bytes(data)
    root = build_from(tmp_path / "texts", tmp_path / "of-texts", format="text")
    assert manifest_of(root).row_counts.left_out_text == "1 without tokens"
    (tmp_path / "texts/c.txt.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(SourceError, match=r"c\.txt\.gz: no document in its 1 rows"):
        build_from(tmp_path / "texts", tmp_path / "other", format="text")


@EACH_PHASE
def test_an_output_without_a_document_is_an_error(tmp_path: Path, phases: dict[str, Any]) -> None:
    sources = write(tmp_path / "sources", a=lines(GOOD), b=lines(GOOD))
    with pytest.raises(SourceError, match="no document is left of 20 rows: 20 dropped by --where"):
        build_from(sources, tmp_path / "out", where="text == 'nothing'", **phases)
    assert not (tmp_path / "out/manifest.json").exists()
    empty = write(tmp_path / "empty", a=b"", b=b"")
    with pytest.raises(SourceError, match="no document is left of 0 rows: the sources are empty"):
        build_from(empty, tmp_path / "other", **phases)
