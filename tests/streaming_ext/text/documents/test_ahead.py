"""Reading ahead gives the same bytes as reading, and its thread ends with the stream."""

import threading
import tracemalloc
from pathlib import Path

import pytest

from streaming_ext.text.documents import files
from streaming_ext.text.documents.files import LocalBytes, Stream
from tests.streaming_ext.text.packed import pack

DATA = bytes(range(256)) * 4000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CHUNK_BYTES", 100_000)
    monkeypatch.setattr(files, "_WORTH_A_THREAD", 100)


@pytest.mark.parametrize("size", [999, 100_000, 100_001, 10**7])
@pytest.mark.parametrize("codec", ["gz", "xz"])
def test_the_same_bytes(tmp_path: Path, size: int, codec: str) -> None:
    path = tmp_path / f"x.{codec}"
    pack(DATA, path, files.CODECS[f".{codec}"])
    found = []
    with Stream(LocalBytes(path, path.name)) as stream:
        while data := stream.read(size):
            assert len(data) <= size
            found.append(data)
        assert stream.read(size) == b""
    assert b"".join(found) == DATA


def readers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("read ahead")}


def test_a_small_read_copies_no_more_than_it_gives(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(files, "_WORTH_A_THREAD", 10**9)
    path = tmp_path / "x.gz"
    pack(DATA, path, "gzip")
    with Stream(LocalBytes(path, path.name)) as stream:
        stream.read(1)
        tracemalloc.start()
        stream.read(512)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < 10_000


def test_closing_ends_the_thread_though_nobody_reads(tmp_path: Path) -> None:
    others = readers()
    pack(DATA, tmp_path / "x.gz", "gzip")
    with Stream(LocalBytes(tmp_path / "x.gz", "x.gz")) as stream:
        assert stream.read(150) == DATA[:150]
        assert len(stream.read(50)) == 50
        assert len(readers() - others) == 1
    assert not readers() - others
