"""What is told of a partition whose process is killed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from streaming_ext.dataset.schema import from_json, to_json
from tasks.core.cluster.last_sign import mark_stopped, told_if_killed
from tasks.core.cluster.messages import PartitionSign
from tasks.core.reporting.report import FailedFile
from tasks.core.storage import LocalStorage
from tests.command_line import wait_for

PATH = "runs/run/00003-1.json"
SIGN = PartitionSign(
    beat=4, host="h", failed=(FailedFile(part=4, source="b", step="tokenize", reason="damaged"),)
)
STOPPED = SIGN.model_copy(update={"beat": 5, "stopped": True})
GUEST = """
import sys, time
from pathlib import Path
from tasks.core.cluster.last_sign import told_if_killed
from tasks.core.storage import LocalStorage
with told_if_killed(LocalStorage(Path(sys.argv[1])), sys.argv[2]):
    print("at work", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    made = LocalStorage(tmp_path)
    made.create()
    made.put(PATH, to_json(SIGN))
    return made


def told(storage: LocalStorage) -> PartitionSign:
    return from_json(PartitionSign, storage.read(PATH), where=PATH)


def test_a_killed_process_is_told_of_and_what_it_did_stays(storage: LocalStorage) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GUEST, str(storage), PATH],
        stdout=subprocess.PIPE,
    ) as guest:
        assert guest.stdout is not None
        assert guest.stdout.readline() == b"at work\n"
        guest.kill()
    wait_for(lambda: told(storage) == STOPPED)


def test_a_process_that_lives_tells_itself(storage: LocalStorage) -> None:
    with told_if_killed(storage, PATH):
        assert told(storage) == SIGN
    time.sleep(0.1)
    assert told(storage) == SIGN


def test_what_has_ended_stays_as_it_is(storage: LocalStorage) -> None:
    ended = SIGN.model_copy(update={"ended": True})
    storage.put(PATH, to_json(ended))
    mark_stopped(storage, PATH)
    assert told(storage) == ended


def test_of_a_run_that_is_over_nothing_is_put(storage: LocalStorage) -> None:
    storage.remove(PATH)
    mark_stopped(storage, PATH)
    assert storage.list() == {}
