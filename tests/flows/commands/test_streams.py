"""Standard streams that are closed, that nobody reads, or that cannot be written."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from flows.console.consoles import log
from flows.console.output_options import OutputOptions
from flows.demo import make_demo
from streaming_ext.errors import StorageError
from tests.flows.conftest import Command
from tests.full_disk import full_disk


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """A pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        yield stream


@pytest.mark.parametrize(
    "words", [["inspect"], ["inspect", "--json"], ["verify"], ["verify", "--json"], ["--help"]]
)
def test_a_result_that_nobody_reads_any_more_ends_nothing(
    shardmill: Command,
    dataset: Path,
    unread: TextIO,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.setattr(sys, "stdout", unread)
    where = [] if words == ["--help"] else [dataset]
    ended = shardmill(*words[:1], *where, *words[1:])
    assert ended.returncode == 0
    assert "shardmill:" not in ended.stderr


@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--json"], ["verify", "--json"]])
def test_a_result_that_cannot_be_written_is_one_line(
    shardmill: Command, dataset: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", full)
        ended = shardmill(words[0], dataset, *words[1:])
    assert ended.returncode == 1
    assert ended.stderr.endswith(
        "shardmill: Cannot write to standard output: no space left on device. Have it go "
        "elsewhere.\n"
    )
    assert ended.stderr.count("shardmill:") == 1


def test_errors_that_nobody_reads_leave_the_exit_code(
    shardmill: Command, dataset: Path, unread: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", unread)
    assert shardmill("verify", dataset).returncode == 0
    assert shardmill("verify", dataset / "nothing").returncode == 2


def test_a_log_that_finds_no_room_is_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with OutputOptions(log_file=tmp_path / "log").applied(), full_disk():
        log.info("first")
        log.info("second")
    told = capsys.readouterr().err
    assert told == f"shardmill: warning: the log {tmp_path}/log is not whole: file too large.\n"


def test_a_demo_that_finds_no_room_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows.console.consoles import out

    with full_disk(), pytest.raises(StorageError, match=r"^Cannot write to .*: file too large\.$"):
        make_demo(tmp_path / "demo", out)
    assert "Making" in capsys.readouterr().out
