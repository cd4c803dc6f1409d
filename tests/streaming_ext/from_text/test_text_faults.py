"""Text whose dataset cannot be made at once: kills, failing storage, a disk that is too small."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenLoader
from streaming_ext.base.errors import ShardmillError
from tests.servers.namespaces import CAN_HIDE, full
from tests.servers.storage.swift import SwiftServer, make_bucket
from tests.streaming_ext.faulty_store import LASTING, PASSING, FaultyStore, faulty_store
from tests.streaming_ext.from_text.conftest import Open, rows_of, write_lines
from tests.streaming_ext.from_text.test_text_dataset import rows_read

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(folder: Path, s3: SwiftServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    with faulty_store(folder, s3, monkeypatch, bucket=make_bucket(s3.url)) as running:
        yield running


@pytest.mark.parametrize("fault", ["503", "reset"])
def test_passing_faults_change_nothing(
    open_text: Open, store: FaultyStore, reference, texts, fault: str, tmp_path: Path
) -> None:
    store.proxy.inflict(PASSING[fault])
    dataset = open_text(sources=store.url, local=tmp_path, batch_size=1)
    assert store.proxy.struck >= 2
    assert (rows_read(dataset) == rows_of(reference, texts)).all()


@pytest.mark.parametrize("how", LASTING)
def test_lasting_faults_are_errors_behind_which_the_work_resumes(
    open_text: Open, store: FaultyStore, reference, texts, how: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from streaming_ext.text import listing

    listed = listing.list_sources

    def spoilt(*arguments: Any, **more: Any) -> Any:
        found = listed(*arguments, **more)
        store.spoil(how)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(listing, "list_sources", spoilt)
        with pytest.raises(ShardmillError, match=LASTING[how]):
            open_text(sources=store.url, local=tmp_path)
    store.mend()
    dataset = open_text(sources=store.url, local=tmp_path, batch_size=1)
    assert (rows_read(dataset, workers=2) == rows_of(reference, texts)).all()
    assert not list(tmp_path.glob("text-*/.making"))


@pytest.mark.parametrize("renames", [1, 12])
def test_leftovers_of_a_killed_process_are_removed_by_the_next(
    open_text: Open, tmp_path: Path, renames: int
) -> None:
    """Killed before it renames a complete temporary file."""

    def make() -> None:
        replaced, left = Path.replace, iter(range(renames))

        def replace(path: Path, target: Path) -> Path:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return replaced(path, target)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            open_text(local=tmp_path / "cache")

    killed = multiprocessing.get_context("fork").Process(target=make)
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert not list((tmp_path / "cache").glob("text-*/manifest.json"))
    for name in ("undisturbed", "cache"):
        open_text(local=tmp_path / name).close()
    assert files_of(tmp_path / "cache") == files_of(tmp_path / "undisturbed")


def files_of(cache: Path) -> dict[str, bytes]:
    """All files of a cache but locks."""
    return {
        file.relative_to(cache).as_posix(): file.read_bytes()
        for file in cache.rglob("*")
        if file.is_file() and file.stat().st_size
    }


OPEN = """
import sys

from streaming_ext import StreamingTextDataset
from streaming_ext.base.errors import StorageError

try:
    StreamingTextDataset(
        sources=sys.argv[1], tokenizer=sys.argv[2], pattern="gpt2", local=sys.argv[3],
        sequence_length=32, batch_size=4, dp_rank=0, dp_world_size=1,
    )
except StorageError as error:
    sys.exit(str(error))
"""


@pytest.mark.skipif(not CAN_HIDE, reason="mounting a small disk needs root")
def test_a_disk_that_is_too_small(open_text: Open, texts, vocabulary: Path, tmp_path: Path) -> None:
    """One error before the work, which says how much space it takes."""
    write_lines(tmp_path / "a.jsonl", [text for some in texts for text in some] * 40)
    (tmp_path / "disk").mkdir()
    ended = subprocess.run(
        [*full(tmp_path / "disk"), sys.executable, "-c", OPEN, tmp_path / "a.jsonl", vocabulary,
         tmp_path / "disk"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    message = re.search(
        r"The tokens of the text take about ([\d.]+) MB in .*, where 0\.[12] MB are free\.",
        ended.stderr,
    )
    assert message, ended.stderr
    dataset = open_text(
        sources=str(tmp_path / "a.jsonl"), local=tmp_path / "cache", shard_size=2**26
    )
    list(StreamingTokenLoader(dataset))
    shards = [*(tmp_path / "cache").rglob("*.mds"), *(tmp_path / "cache").rglob("*.zstd")]
    taken = sum(shard.stat().st_size for shard in shards) / 1e6
    assert 0.7 * taken < float(message[1]) < 1.3 * taken
