"""The record of a run is written last, beside an output that is complete without it."""

import logging

from flows import build_flow
from streaming_ext.store import LocalStorage
from tests.full_disk import full_disk
from tests.tasks.core.reporting.test_report import make_report


def test_a_record_that_finds_no_room_is_a_warning(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(build_flow, "get_run_logger", logging.getLogger)  # no flow run is active
    storage = LocalStorage(tmp_path / "out")
    storage.create()
    with full_disk():
        build_flow._save_record(make_report(), storage)
    assert "The record of this run is missing: Cannot write" in caplog.text
    assert storage.list("runs") == {}
    build_flow._save_record(make_report(), storage)
    assert len(storage.list("runs")) == 1
