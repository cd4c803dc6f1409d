"""Text whose dataset cannot be made at once: kills, failing storage, a disk that is too small."""

import ctypes
import errno
import fcntl
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenLoader
from streaming_ext.base.errors import ShardmillError, SourceError, StorageError, UsageError
from tests.servers.namespaces import CAN_HIDE
from tests.servers.storage.swift import SwiftServer, make_bucket
from tests.streaming_ext.faulty_store import LASTING, FaultyStore, faulty_store
from tests.streaming_ext.processes import in_processes
from tests.streaming_ext.training.from_text.conftest import (
    files_of,
    kill_before_rename,
    write_lines,
)

CLONE_NEWNS = 0x20000  # of unshare(2): a separate mount namespace


@pytest.fixture
def store(folder: Path, s3: SwiftServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    with faulty_store(folder, s3, monkeypatch, bucket=make_bucket(s3.url)) as running:
        yield running


@pytest.mark.parametrize("how", LASTING)
def test_lasting_faults_are_errors_behind_which_the_work_resumes(
    open_text, check_rows, store, how, tmp_path, monkeypatch
) -> None:
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
    check_rows(sources=store.url, local=tmp_path, workers=2)
    assert not list(tmp_path.glob("text-*/.making"))


@pytest.mark.parametrize("renames", [1, 12])
def test_leftovers_of_a_killed_process_are_removed_by_the_next(
    open_text, tmp_path, renames
) -> None:
    kill_before_rename(renames, lambda: open_text(local=tmp_path / "cache"))
    assert not list((tmp_path / "cache").glob("text-*/manifest.json"))
    for name in ("undisturbed", "cache"):
        open_text(local=tmp_path / name).close()
    assert files_of(tmp_path / "cache") == files_of(tmp_path / "undisturbed")


def test_a_file_system_without_locks(open_text, tmp_path, monkeypatch) -> None:
    """NFS without its lock daemon is such a file system."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError, match=rf"{tmp_path}/text-.* cannot be locked: no locks avail"):
        open_text(local=tmp_path)


def on_disks(folder: Path, options: Iterable[str], work: Callable[[], object]) -> list[str]:
    """Do work on one small disk after another until one suffices; return the errors before it."""

    def fail_on_them(_: int) -> list[str]:
        assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        messages = []
        for each in options:
            subprocess.run(["mount", "-t", "tmpfs", "-o", each, "none", folder], check=True)
            try:
                work()
                break
            except StorageError as error:
                messages.append(str(error))
        return messages

    (found,) = in_processes(1, fail_on_them)
    return found


@pytest.mark.skipif(not CAN_HIDE, reason="mounting a small disk needs root")
def test_a_disk_that_takes_no_more_files(open_text, tmp_path) -> None:
    """The error names the path, whichever file the disk refuses first."""
    options = (f"size=8m,nr_inodes={n}" for n in (*range(1, 14), *range(14, 120, 5)))
    messages = on_disks(
        tmp_path, options, lambda: list(StreamingTokenLoader(open_text(local=tmp_path)))
    )
    assert 15 < len(messages) < 30
    for message in messages:
        assert str(tmp_path) in message
        assert "o space left" in message


def test_text_that_gives_no_document(open_text, texts, tmp_path) -> None:
    """A file without a text is an error, and so is a dataset without a document."""
    sources, settings = tmp_path / "sources", {"local": tmp_path / "cache"}
    sources.mkdir()
    write_lines(sources / "a.jsonl", texts[1])
    with pytest.raises(SourceError, match=r"no document is left of 30 rows: 30 dropped by --min"):
        open_text(sources=str(sources), min_characters=10_000, **settings)
    (sources / "b.jsonl").write_text('{"text": null}\n{"text": ""}\n')
    with pytest.raises(SourceError, match=r"b\.jsonl: no document in its 2 rows"):
        open_text(sources=str(sources), **settings)
    assert not [*tmp_path.rglob("manifest.json")]


def test_a_cache_inside_its_own_sources(open_text, texts, tmp_path) -> None:
    write_lines(tmp_path / "a.jsonl", texts[1])
    with pytest.raises(UsageError, match=r"inside its own sources, .* Choose a folder"):
        open_text(sources=str(tmp_path), local=tmp_path / "cache")
    assert open_text(sources=f"{tmp_path}/*.jsonl", local=tmp_path / "cache").size > 0
    found = open_text(sources=str(tmp_path), local=tmp_path.parent / f"{tmp_path.name}-cache")
    assert len(found.streams) == 1  # of a.jsonl alone: files in the cache are no sources


@pytest.mark.skipif(not CAN_HIDE, reason="mounting a small disk needs root")
def test_a_disk_that_is_too_small(open_text, texts, tmp_path) -> None:
    """One error before the work says how much space it takes."""
    source, disk = tmp_path / "a.jsonl", tmp_path / "disk"
    write_lines(source, [text for some in texts for text in some] * 40)
    disk.mkdir()
    (error,) = on_disks(disk, ["size=200k"], lambda: open_text(sources=str(source), local=disk))
    message = re.search(
        r"The tokens of the text take at least ([\d.]+) MB in .*, where 0\.[12] MB are free\.",
        error,
    )
    assert message, error
    dataset = open_text(sources=str(source), local=tmp_path / "cache", shard_size=2**26)
    list(StreamingTokenLoader(dataset))
    shards = [*(tmp_path / "cache").rglob("*.mds"), *(tmp_path / "cache").rglob("*.zstd")]
    taken = sum(shard.stat().st_size for shard in shards) / 1e6
    assert 0.3 * taken < float(message[1]) <= taken
