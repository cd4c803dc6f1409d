"""The record of a run, put last, beside an output that is whole without it."""

import logging
from pathlib import Path

import pytest

from flows import making
from streaming_ext.store import LocalStorage
from tests.full_disk import full_disk
from tests.tasks.core.reporting.test_report import make_report


def test_a_record_that_finds_no_room_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(making, "get_run_logger", logging.getLogger)  # there is no run
    storage = LocalStorage(tmp_path / "out")
    storage.create()
    with full_disk():
        making._leave_record(make_report(), storage)
    assert "The record of this run is missing, all else is there: Cannot write" in caplog.text
    assert storage.list("runs") == {}
    making._leave_record(make_report(), storage)
    assert len(storage.list("runs")) == 1
