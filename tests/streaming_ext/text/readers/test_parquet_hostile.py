"""Parquet files made to fill memory or disk: use is bounded, and a clear error names the file."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.base.memory import memory_limit
from streaming_ext.format.spec import TokenizerIdentity
from streaming_ext.text.documents.document_rows import MAX_TEXT_BYTES
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.config import ShardConfig
from tasks.core.workers.pool import _MEMORY_SETTINGS, WorkerPool
from tasks.core.workers.tokenize_part import TokenizeJob

LIMIT = 6 * 2**27
LAYOUT = {"write_statistics": False, "store_schema": False}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds memory so")


def repeated(path: Path, texts: list[str], numbers: Sequence[int | None]) -> Path:
    """Write a file in which many rows refer to texts that are stored once."""
    column = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(texts))
    pq.write_table(
        pa.table({"text": column}),
        path,
        compression="zstd",
        dictionary_pagesize_limit=2**28,
        **LAYOUT,
    )
    return path


def one_text(path: Path, size: int) -> Path:
    """Write a file of one text that compresses to almost nothing."""
    column = pa.array([b"x " * (size // 2)], pa.binary()).view(pa.string())
    pq.write_table(
        pa.table({"text": column}), path, compression="zstd", use_dictionary=False, **LAYOUT
    )
    return path


def lying(path: Path) -> Path:
    """Write a file whose footer promises a million rows instead of fifty thousand."""
    pq.write_table(pa.table({"text": ["a b"] * 50_000}), path, **LAYOUT)
    data = path.read_bytes()
    true, false = b"\x16\xa0\x8d\x06", b"\x16\x80\x9b\x7f"
    footer = int.from_bytes(data[-8:-4], "little") + 8
    assert true in data[-footer:]
    path.write_bytes(data[:-footer] + data[-footer:].replace(true, false))
    return path


Run = Callable[[Path], object]


@pytest.fixture(scope="module")
def worker(
    tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WorkerPool, Run]]:
    """A started pool of one worker, and a function that tokenizes a file in it."""
    saved, scratch = (tmp_path_factory.mktemp(name) for name in ("saved", "scratch"))
    tokenizer.save(saved)
    config = ShardConfig(sources=("x",), output="y", tokenizer="z")
    spec = config.spec(TokenizerIdentity.model_validate(tokenizer.description()))

    def run(file: Path) -> object:
        source = SourceFile(url=str(file), size=file.stat().st_size if file.exists() else 1)
        job = TokenizeJob(
            part=Part.whole(0, source),
            scratch=str(scratch),
            tokenizer_folder=str(saved),
            engine="reference",
            spec=spec,
        )
        return pool.run(job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDMILL_WORKER_MEMORY", str(LIMIT))
        with WorkerPool(1) as pool:
            with pytest.raises(SourceError):
                run(Path("/gone.parquet"))
            yield pool, run


def peak(pool: WorkerPool) -> int:
    """Return the most memory that the worker has held so far, in bytes."""
    (pid,) = pool.pids
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024


def read_in_a_process(file: Path, limit: str, body: str) -> "subprocess.CompletedProcess[str]":
    """Read a file batch by batch in a process with little memory; return the ended process."""
    code = f"""
from pathlib import Path
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.readers.parquet import ParquetFormat  # loaded before the limit
from streaming_ext.base.memory import limit_memory
limit_memory()
rows, sizes = [], 0
for batch in ParquetFormat().read(Path({str(file)!r}), ReadOptions()):
    {body}
print(len(rows), rows == sorted(set(rows)), sizes)
"""
    environment = os.environ | _MEMORY_SETTINGS | {"SHARDMILL_WORKER_MEMORY": limit}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=False
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda path: one_text(path, 270_000_000),
            f"row 0: a text of 270000000 bytes, at most {MAX_TEXT_BYTES}",
        ),
        (
            lambda path: one_text(path, 700_000_000),
            "more memory than the 0.75 GiB that a worker may have",
        ),
        (lying, "its footer promises 1042112"),
    ],
    ids=["long", "longest", "lying"],
)
def test_is_refused_and_the_worker_lives(
    worker: tuple[WorkerPool, Run], tmp_path: Path, make: Callable[[Path], Path], said: str
) -> None:
    pool, run = worker
    file, pids = make(tmp_path / "x.parquet"), pool.pids
    assert file.stat().st_size < 500_000
    with pytest.raises(SourceError, match=f"^{file}: .*{said}"):
        run(file)
    assert pool.pids == pids != []
    assert peak(pool) < LIMIT + 2**29  # plus what it starts with


def test_one_text_for_many_rows_is_refused(tmp_path: Path) -> None:
    """No worker reads it: the tokens of a thousand million bytes would take minutes."""
    file = repeated(tmp_path / "x.parquet", ["a b" * 300_000], np.zeros(300_000, np.int32))
    assert file.stat().st_size < 5000
    ended = read_in_a_process(file, str(LIMIT), "assert batch.texts.nbytes < 2**25")
    assert re.search(f"SourceError: {file}: .*more than 1000 times the bytes of", ended.stderr)


def test_repeated_texts_are_read_where_memory_is_short(tmp_path: Path) -> None:
    """Real repetition is no attack: 630 MB of repeated text are read within 400 MB of memory."""
    numbers = [None if row % 7 == 0 else row % 2 for row in range(30_000)]
    texts = ["first " * 3000, "other " * 4000]
    file = repeated(tmp_path / "x.parquet", texts, numbers)
    body = "rows += batch.rows.tolist(); sizes += sum(map(len, batch.texts.to_pylist()))"
    ended = read_in_a_process(file, "400MiB", body)
    kept = [row for row in numbers if row is not None]
    assert ended.stdout.split() == [str(len(kept)), "True", str(sum(len(texts[n]) for n in kept))]


def test_the_limit_and_what_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDMILL_WORKER_MEMORY", raising=False)
    assert memory_limit() == 4 * 2**30
    monkeypatch.setenv("SHARDMILL_WORKER_MEMORY", "0")
    assert memory_limit() == 0
    for text in ("much", "-1", "1MiB"):
        monkeypatch.setenv("SHARDMILL_WORKER_MEMORY", text)
        with pytest.raises(UsageError, match="SHARDMILL_WORKER_MEMORY"):
            memory_limit()
