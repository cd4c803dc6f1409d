"""What a run does before there is a flow run, while Prefect's API gets ready."""

import threading
from pathlib import Path

import pytest

from flows.preparation import prepared_ahead, preparing
from tasks.core.config import ShardConfig
from tasks.core.reporting.progress import RunProgress
from tasks.core.storage import LocalStorage, disk_lock
from tasks.core.workers.jobs import RESULT_FILE
from tests.command_line import wait_for


def test_workers_tokenize_before_there_is_a_flow_run(
    tmp_path: Path, vocabulary: Path, sources: Path
) -> None:
    config = ShardConfig(
        sources=(str(sources),), output=str(tmp_path / "out"), tokenizer=str(vocabulary),
        pattern="gpt2", engine="reference", workers=1,
    )  # fmt: skip
    progress = RunProgress()
    with prepared_ahead(config, progress), preparing(config, progress) as prepared:
        assert prepared.begun is not None
        assert len(prepared.plan.todo) > 1
        wait_for((prepared.plan.part_scratch(0) / RESULT_FILE).exists)
        assert not prepared.plan.part_scratch(1).exists()  # one a worker
    assert not (tmp_path / "out/parts").exists()  # a part that no task took is none


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
