"""Signs of life between hosts, and how a silent host is noticed."""

import pytest

from streaming_ext.base.errors import StorageError
from streaming_ext.store import LocalStorage
from tasks.core.hosts.cluster import Heartbeat, ParentSign, Silence
from tests.command_line import wait_for


def test_pulse() -> None:
    pulse = Silence(now=100.0)
    assert pulse.hear(None, now=105.0) == 5.0
    assert pulse.hear(1, now=106.0) == 0.0
    assert pulse.hear(1, now=109.0) == 3.0
    assert pulse.hear(2, now=110.0) == 0.0


def test_heartbeat_changes_the_file_until_its_block_ends(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tasks.core.hosts.cluster.BEAT_SECONDS", 0.02)
    storage = LocalStorage(tmp_path)
    storage.create()
    beats = []

    def sign(beat: int) -> ParentSign:
        beats.append(beat)
        return ParentSign(beat=beat, attempts=())

    def put() -> int:
        return ParentSign.model_validate_json(storage.read("runs/x/sign")).beat

    with Heartbeat(storage, "runs/x/sign", sign):
        assert put() > 0  # the first sign is there at once
        wait_for(lambda: put() > 3)
    last = put()
    storage.put("runs/x/sign", b"mine")
    assert last == beats[-1] > 3
    assert beats == [*range(1, beats[-1] + 1)]
    assert storage.read("runs/x/sign") == b"mine"


def test_the_first_beat_must_get_through(tmp_path) -> None:
    gone = LocalStorage(tmp_path / "gone")
    sign = ParentSign(beat=1, attempts=())
    with pytest.raises(StorageError, match="gone"), Heartbeat(gone, "sign", lambda _: sign):
        pass
