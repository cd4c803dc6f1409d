"""A document that cannot be read fails its file, or is counted and listed; it is never lost."""

import json
from pathlib import Path

import pytest

from flows.terminal.show_checks import show_dataset, show_verified
from streaming_ext.base.errors import SourceError
from streaming_ext.format.reading import read_record
from streaming_ext.store import LocalStorage
from streaming_ext.text.documents import objects
from tasks.core.check.inspect import describe
from tasks.core.check.verify import verify
from tasks.core.synthetic import make_documents
from tests.tasks.core.build_dataset import build_from, found_in, require_sound
from tests.tasks.core.check.damage import printed

TEXTS = [text[:500] for text in make_documents(260, seed=7)]
BAD = {3: b'{"text": 5}', 9: b"{", 17: b'{"text": "\xff"}'}


def write(folder: Path, bad: dict[int, bytes]) -> Path:
    """Write two files of lines; in the first, some are replaced."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"text": text}).encode() for text in TEXTS]
    for row, line in bad.items():
        lines[row] = line
    (folder / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (folder / "b.jsonl").write_bytes(b'{"text": "one more"}\n')
    return folder


def skipped(sources: Path, root: Path) -> LocalStorage:
    build_from(sources, root, on_bad_document="skip")
    return LocalStorage(root)


def test_skipped_ones_are_counted_listed_and_shown(tmp_path) -> None:
    sources = write(tmp_path / "sources", BAD)
    with pytest.raises(SourceError, match=r"a\.jsonl: line 4, byte \d+: 'text' is of type number"):
        build_from(sources, tmp_path / "other")
    storage = skipped(sources, tmp_path / "dataset")
    record = read_record(storage, 0)
    assert (record.rows, record.bad_documents, record.null_documents) == (260, 3, 0)
    assert [bad.row for bad in record.bad_listed] == [3, 9, 17]
    assert str(record.bad_listed[0]).startswith(f"{sources}/a.jsonl: line 4, byte ")
    assert b'"bad' not in storage.read("parts/00001.json")

    report = verify(storage, deep=True)
    assert report.findings == ()
    assert report.checked.bad_documents == 3
    lines = [line.split() for line in printed(show_verified, report).splitlines()]
    assert ["bad", "documents", "3"] in lines
    shown = printed(show_dataset, describe(storage))
    assert "unreadable documents, left out" in shown
    assert "a.jsonl: line 10, byte" in shown

    # The good documents are those of a file without the bad ones.
    lines_without = [json.dumps({"text": text}) for row, text in enumerate(TEXTS) if row not in BAD]
    good = tmp_path / "good"
    good.mkdir()
    (good / "a.jsonl").write_text("\n".join(lines_without))
    (good / "b.jsonl").write_bytes((sources / "b.jsonl").read_bytes())
    same = LocalStorage(build_from(good, tmp_path / "same"))
    shards = [path for path in storage.list() if ".mds" in path]
    assert [path for path in same.list() if ".mds" in path] == shards
    assert all(storage.read(path) == same.read(path) for path in shards)

    # A source that changed since is found.
    data = (sources / "a.jsonl").read_bytes()
    (sources / "a.jsonl").write_bytes(data.replace(b'{"text": 5}', b'{"text":"y'))
    assert found_in(tmp_path / "dataset", deep=True)


def test_another_version_may_say_otherwise_what_is_wrong(tmp_path, monkeypatch) -> None:
    storage = skipped(write(tmp_path / "sources", BAD), tmp_path / "dataset")
    said = read_record(storage, 0).bad_listed
    monkeypatch.setattr(objects, "_KINDS", {})
    assert skipped(tmp_path / "sources", tmp_path / "other")
    assert read_record(LocalStorage(tmp_path / "other"), 0).bad_listed != said
    assert verify(storage, deep=True).findings == ()


def test_the_list_is_bounded_the_count_exact(tmp_path) -> None:
    sources = write(tmp_path / "sources", dict.fromkeys(range(20, 250), b"[]"))
    record = read_record(skipped(sources, tmp_path / "dataset"), 0)
    assert (record.bad_documents, len(record.bad_listed)) == (230, 100)
    require_sound(tmp_path / "dataset", deep=True)
