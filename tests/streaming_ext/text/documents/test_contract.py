"""What every source format keeps: the same documents, whatever the file is written as."""

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streaming_ext.errors import SourceError, UsageError
from streaming_ext.text.documents.formats import FORMATS, format_of
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from tests.tasks.core.doubles import write_source

TEXT = ReadOptions(column="text")
DOCUMENTS = ["one", None, "", "zwei\n\t\"'\\", None, "\U0001f600 \x00 \u2028", "one", "d" * 3000]


@dataclass(frozen=True)
class Kind:
    """A way to write documents."""

    suffix: str
    write: Callable[[Path, Sequence[str | None]], object]
    says: str  # of a file cut in the middle


def json_lines(documents: Sequence[str | None]) -> bytes:
    return b"".join(
        json.dumps({"id": row, "text": text}).encode() + b"\n" for row, text in enumerate(documents)
    )


def json_array(documents: Sequence[str | None]) -> bytes:
    rows = [{"id": row, "text": text} for row, text in enumerate(documents)]
    return json.dumps(rows, indent=1).encode()


def arrow_packed(codec: str) -> Callable[[bytes], bytes]:
    def pack(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(data)
        packed: bytes = sink.getvalue().to_pybytes()
        return packed

    return pack


def lines_as(pack: Callable[[bytes], bytes]) -> Callable[[Path, Sequence[str | None]], object]:
    return lambda path, documents: path.write_bytes(pack(json_lines(documents)))


def arrow_stream(path: Path, documents: Sequence[str | None]) -> None:
    table = pa.table({"id": range(len(documents)), "text": pa.array(documents, pa.string())})
    with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_stream(raw, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def arrow_file(path: Path, documents: Sequence[str | None]) -> None:
    table = pa.table({"id": range(len(documents)), "text": pa.array(documents, pa.large_string())})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(path), "wb") as raw,
        pa.ipc.new_file(raw, table.schema, options=options) as writer,
    ):
        writer.write_table(table, max_chunksize=3)


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress, ".zst": arrow_packed("zstd"), ".bz2": bz2.compress,
    ".xz": lzma.compress, ".lz4": arrow_packed("lz4"),
}  # fmt: skip
KINDS = [
    Kind(".parquet", write_source, "not a whole Parquet file"),
    Kind(".jsonl", lines_as(bytes), "line 8, byte [0-9]+: no valid JSON"),
    Kind(".ndjson", lines_as(bytes), "line 8, byte [0-9]+: no valid JSON"),
    *(Kind(f".jsonl{suffix}", lines_as(pack), "damaged or cut short")
      for suffix, pack in PACKED.items()),
    Kind(".json", lambda path, documents: path.write_bytes(json_array(documents)),
         "document 8, byte [0-9]+: no valid JSON"),
    Kind(".lines.json", lines_as(bytes), "line 8, byte [0-9]+: no valid JSON"),
    Kind(".json.gz", lambda path, documents: path.write_bytes(gzip.compress(json_array(documents))),
         "damaged or cut short"),
    Kind(".stream.arrow", arrow_stream, "no whole Arrow file or stream"),
    Kind(".file.arrow", arrow_file, "no whole Arrow file or stream"),
]  # fmt: skip
ALL = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)


def read(path: Path, batch_bytes: int = 2**20) -> list[tuple[int, str]]:
    found, rows, last = [], 0, 0.0
    for batch in format_of(path.name).read(path, TEXT, batch_bytes=batch_bytes):
        assert batch.texts.type == pa.large_string()
        assert batch.rows.dtype == np.int64
        assert batch.texts.null_count == 0
        assert last <= batch.fraction <= 1.0
        found += zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
        rows, last = rows + batch.num_rows, batch.fraction
    assert rows == len(DOCUMENTS) or path.name.startswith("other")
    return found


def test_every_format_is_here() -> None:
    assert {format_of(f"x{kind.suffix}").name for kind in KINDS} == {one.name for one in FORMATS}


@ALL
@pytest.mark.parametrize("batch_bytes", [20, 2**20])
def test_the_same_documents(kind: Kind, tmp_path: Path, batch_bytes: int) -> None:
    path = tmp_path / f"x{kind.suffix}"
    kind.write(path, DOCUMENTS)
    expected = [(row, text) for row, text in enumerate(DOCUMENTS) if text is not None]
    assert read(path, batch_bytes) == expected


@ALL
def test_no_documents(kind: Kind, tmp_path: Path) -> None:
    kind.write(tmp_path / f"other{kind.suffix}", [])
    assert read(tmp_path / f"other{kind.suffix}") == []


@ALL
def test_a_file_cut_short_is_named(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"x{kind.suffix}"
    noise = random.Random(1).randbytes(2000).hex()
    kind.write(path, [*DOCUMENTS[:-1], noise])
    path.write_bytes(path.read_bytes()[: -len(noise) // 4])
    with pytest.raises(SourceError, match=rf"x{kind.suffix}: {kind.says}"):
        read(path)
    path.unlink()
    with pytest.raises(SourceError, match=r"the file is gone"):
        read(path)


def looked_at(path: Path) -> SourceFileBytes:
    return SourceFileBytes(SourceFile(url=str(path), size=path.stat().st_size))


@ALL
def test_a_look_refuses_another_column(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"x{kind.suffix}"
    kind.write(path, DOCUMENTS)
    assert format_of(path.name).look(looked_at(path), TEXT) is not None
    with pytest.raises(UsageError, match=r"has no column 'body'; its columns are .*text"):
        format_of(path.name).look(looked_at(path), ReadOptions(column="body"))


@ALL
def test_blocks_hold_every_document_once(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"x{kind.suffix}"
    rng = random.Random(3)
    documents = [rng.randbytes(rng.randrange(60_000)).hex() for _ in range(200)]
    kind.write(path, documents)
    format_ = format_of(path.name)
    look = format_.look(looked_at(path), TEXT)
    assert look is not None
    found = []
    for _, batches in format_.read_blocks(
        looked_at(path), TEXT, range(len(look.blocks)), batch_bytes=2**16
    ):
        fractions = []
        for batch in batches:
            found += batch.texts.to_pylist()
            fractions.append(batch.fraction)
        assert fractions == sorted(fractions)
        assert fractions[-1] == pytest.approx(1, abs=0.05)
    assert found == documents


@ALL
def test_a_sample_can_be_written(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"other{kind.suffix}"
    format_ = format_of(path.name)
    texts = [text for text in DOCUMENTS if text is not None]
    kind.write(path, DOCUMENTS)
    look = format_.look(looked_at(path), TEXT)
    assert look is not None
    format_.write(path, pa.chunked_array([texts], pa.large_string()), TEXT, codec=look.codec)
    assert [text for _, text in read(path)] == texts
