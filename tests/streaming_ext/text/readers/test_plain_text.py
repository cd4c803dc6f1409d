"""Plain text: a file is one document, whatever it holds."""

import gzip
from pathlib import Path

import pytest

from streaming_ext.base.errors import SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents import document_rows
from streaming_ext.text.readers import plain_text
from tests.streaming_ext.text.reading import SKIP, faults, read

TEXT = ReadOptions(source_format="text")


@pytest.mark.parametrize("text", ["", "one\n\ttwo\r\n", "\U0001f600 \x00 \ufeff", "é" * 5000])
def test_a_file_is_a_document(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.txt").write_bytes(text.encode())
    assert read(tmp_path / "x.txt", ReadOptions())[0] == [(0, text)]
    (tmp_path / "x.py").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read(tmp_path / "x.py", TEXT)[0] == [(0, text)]
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert read(tmp_path / "x.txt.gz", ReadOptions(columns=("a", "b")))[0] == [(0, text)]


def test_bad_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plain_text, document_rows):
        monkeypatch.setattr(module, "MAX_TEXT_BYTES", 1000)
    path = tmp_path / "x.txt"
    path.write_bytes(b"caf\xe9")
    assert faults(read(path, SKIP)[1]) == [(0, "row 0", "no valid UTF-8 at byte 3 of its text")]
    with pytest.raises(SourceError, match=r"x\.txt: row 0: no valid UTF-8 at byte 3"):
        read(path, ReadOptions())
    path.write_bytes(b"a" * 1001)
    good, bad, number, *_ = read(path, SKIP)
    assert (good, len(bad), number) == ([], 1, 1)
    with pytest.raises(SourceError, match="longer than"):
        read(path, ReadOptions())
