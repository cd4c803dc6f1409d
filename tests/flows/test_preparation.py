"""What a run does before its first part."""

import threading
from pathlib import Path

import pytest

from flows.preparation import preparing
from tasks.core.config import ShardConfig
from tasks.core.reporting.progress import RunProgress
from tasks.core.storage import LocalStorage, disk_lock
from tests.command_line import wait_for


def test_it_says_for_whom_it_waits(
    tmp_path: Path, vocabulary: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of a run that was killed hold its lock for another moment."""
    monkeypatch.setattr(disk_lock.Holder, "lives", lambda self: False)
    output = LocalStorage(tmp_path / "out")
    output.create()
    config = ShardConfig(
        sources=(str(sources),), output=str(output), tokenizer=str(vocabulary), pattern="gpt2",
        engine="reference", workers=1,
    )  # fmt: skip
    progress, ended = RunProgress(), threading.Event()

    def prepare() -> None:
        with preparing(config, progress):
            ended.set()

    with output.exclusive():
        thread = threading.Thread(target=prepare)
        thread.start()
        wait_for(lambda: "waiting for another run (process " in progress.snapshot().phase)
        assert not ended.is_set()
    thread.join()
    assert ended.is_set()
