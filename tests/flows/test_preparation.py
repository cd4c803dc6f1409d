"""The phase of a run before its first part."""

import threading

from streaming_ext.store import LocalStorage, holding
from tasks.core.reporting.progress import RunProgress
from tests.command_line import wait_for


def test_it_says_for_whom_it_waits(tmp_path, monkeypatch) -> None:
    """The workers of a killed run hold its lock for another moment."""
    monkeypatch.setattr(holding.Holder, "lives", lambda self: False)
    output = LocalStorage(tmp_path / "out")
    output.create()
    progress, ended = RunProgress(), threading.Event()

    def hold() -> None:
        with output_of_another.exclusive(progress.enter):
            ended.set()

    output_of_another = LocalStorage(tmp_path / "out")
    with output.exclusive():
        thread = threading.Thread(target=hold)
        thread.start()
        wait_for(lambda: "waiting for another run (process " in progress.snapshot().phase)
        assert not ended.is_set()
    thread.join()
    assert ended.is_set()
