"""What is read ahead is what is read, errors in their place, and nothing goes on behind the end."""

import threading
import time
from pathlib import Path

import pytest

from streaming_ext.errors import SourceError
from streaming_ext.text.documents import compression
from streaming_ext.text.documents.compression import ReadAhead, open_here, pack

DATA = bytes(range(256)) * 40


class Source:
    """Some bytes, and an error behind them."""

    def __init__(self, data: bytes, error: Exception | None = None) -> None:
        self.data, self.error = data, error

    def read(self, size: int) -> bytes:
        piece, self.data = self.data[:size], self.data[size:]
        if not piece and self.error is not None:
            raise self.error
        return piece


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_CHUNK_BYTES", 100)


@pytest.mark.parametrize("size", [1, 99, 100, 101, 1000, 10**6])
def test_the_same_bytes(size: int) -> None:
    stream = ReadAhead(Source(DATA).read)
    found = []
    while data := stream.read(size):
        assert len(data) <= size
        found.append(data)
    assert b"".join(found) == DATA
    assert stream.read(size) == b""
    stream.close()


def test_an_error_comes_behind_what_was_read() -> None:
    stream = ReadAhead(Source(DATA, OSError("gone")).read)
    found = b""
    with pytest.raises(OSError, match="gone"):
        while True:
            found += stream.read(50)
    assert found == DATA
    stream.close()


def readers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "read ahead"}


def test_closing_ends_the_thread_though_nobody_reads(tmp_path: Path) -> None:
    others = readers()
    pack(DATA * 100, tmp_path / "x.gz", "gzip")
    with open_here(tmp_path / "x.gz", name="x.gz") as stream:
        assert stream.read(150) == DATA[:150]
        assert len(stream.read(50)) == 50
        assert len(readers() - others) == 1
        time.sleep(0.05)  # it waits for room by now
    assert not readers() - others


def test_damage_is_named(tmp_path: Path) -> None:
    pack(DATA * 100, tmp_path / "x.gz", "gzip")
    path = tmp_path / "x.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with (
        pytest.raises(SourceError, match=r"x\.gz: damaged or cut short"),
        open_here(path, name="x.gz") as stream,
    ):
        while stream.read(1000):
            pass
