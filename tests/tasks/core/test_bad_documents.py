"""What cannot be read is never lost in silence: it fails the file, or is counted and listed."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from flows.terminal.show_checks import show_dataset, show_verified
from streaming_ext.base.errors import ConfigMismatchError, SourceError
from streaming_ext.format.layout import record_path
from streaming_ext.format.reading import record_of
from streaming_ext.store import LocalStorage
from tasks.core.check.inspect import describe
from tasks.core.check.verify import verify
from tasks.core.synthetic import make_documents
from tests.tasks.core.build_dataset import build_from

TEXTS = [text[:500] for text in make_documents(260, seed=7)]


def write(folder: Path, bad: dict[int, bytes]) -> Path:
    """Two files of lines, some of the first one replaced."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"text": text}).encode() for text in TEXTS]
    for row, line in bad.items():
        lines[row] = line
    (folder / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (folder / "b.jsonl").write_bytes(b'{"text": "one more"}\n')
    return folder


def told(show: object) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    show(console)  # type: ignore[operator]
    return console.export_text()


BAD = {3: b'{"text": 5}', 9: b"{", 17: b'{"text": "\xff"}'}


def test_skipped_ones_are_counted_listed_and_shown(tmp_path: Path, vocabulary: Path) -> None:
    sources = write(tmp_path / "sources", BAD)
    with pytest.raises(SourceError, match=r"a\.jsonl: line 4, byte \d+: 'text' is of type number"):
        build_from(sources, tmp_path / "other", tokenizer=str(vocabulary))
    root = build_from(
        sources, tmp_path / "dataset", tokenizer=str(vocabulary), on_bad_document="skip"
    )
    record = record_of((root / record_path(0)).read_bytes(), where="record")
    assert (record.rows, record.bad_documents, record.null_documents) == (260, 3, 0)
    assert [bad.row for bad in record.bad_listed] == [3, 9, 17]
    assert str(record.bad_listed[0]).startswith(f"{sources}/a.jsonl: line 4, byte ")
    assert b"bad" not in (root / record_path(1)).read_bytes().replace(b"on_bad_document", b"")

    report = verify(LocalStorage(root), deep=True)
    assert report.findings == ()
    assert report.checked.bad_documents == 3
    shown = told(lambda c: show_verified(report, c))
    assert ["bad", "documents", "3"] in [line.split() for line in shown.splitlines()]
    shown = told(lambda c: show_dataset(describe(LocalStorage(root)), c))
    assert "unreadable documents, left out" in shown
    assert "a.jsonl: line 10, byte" in shown

    # the good ones are those of a file without the bad ones
    lines = [line for row, line in enumerate(TEXTS) if row not in BAD]
    (sources / "a.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    same = build_from(sources, tmp_path / "same", tokenizer=str(vocabulary))
    for split in ("train", "holdout"):
        for file in (root / split).rglob("*.mds*"):
            assert file.read_bytes() == (same / file.relative_to(root)).read_bytes()


def test_the_list_is_bounded_the_count_exact(tmp_path: Path, vocabulary: Path) -> None:
    sources = write(tmp_path / "sources", dict.fromkeys(range(20, 250), b"[]"))
    root = build_from(
        sources, tmp_path / "dataset", tokenizer=str(vocabulary), on_bad_document="skip"
    )
    record = record_of((root / record_path(0)).read_bytes(), where="record")
    assert (record.bad_documents, len(record.bad_listed)) == (230, 100)
    assert verify(LocalStorage(root), deep=True).findings == ()


def test_it_is_part_of_what_decides_the_bytes(tmp_path: Path, vocabulary: Path) -> None:
    sources = write(tmp_path / "sources", {})
    build_from(sources, tmp_path / "dataset", tokenizer=str(vocabulary))
    with pytest.raises(ConfigMismatchError, match="on_bad_document: the output has 'fail'"):
        build_from(sources, tmp_path / "dataset", tokenizer=str(vocabulary), on_bad_document="skip")


def test_verify_sees_what_a_record_hides(tmp_path: Path, vocabulary: Path) -> None:
    sources = write(tmp_path / "sources", BAD)
    root = build_from(
        sources, tmp_path / "dataset", tokenizer=str(vocabulary), on_bad_document="skip"
    )
    data = (sources / "a.jsonl").read_bytes()
    (sources / "a.jsonl").write_bytes(data.replace(b'{"text": 5}', b'{"text":"y'))
    assert verify(LocalStorage(root), deep=True).findings != ()
