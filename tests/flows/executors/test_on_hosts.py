"""Attempts at a partition: when one counts as lost, when another is made, what people see."""

import pytest
from prefect.states import Crashed, Failed, Pending, Running, Scheduled

from flows.build_flow import require_absolute
from flows.executors.on_hosts import (
    ATTEMPTS_WITHOUT_GAIN,
    REFUSED,
    START_SECONDS,
    Partition,
    describe,
)
from streaming_ext.base.errors import UsageError
from tasks.core.hosts.cluster import SILENCE_VARIABLE, PartitionSign, Silence
from tasks.core.reporting.progress import RunProgress, WorkingFile
from tasks.core.reporting.report import FailedFile, PartTimes
from tests.tasks.core.reporting.test_report import part_times

BAD = FailedFile(part=4, source="b", step="tokenize", reason="damaged")


def hear(partition: Partition, sign: PartitionSign, now: float) -> list[PartTimes | FailedFile]:
    return list(partition.hear(sign, now))


def started() -> Partition:
    return Partition(0, [3, 4, 5], 0.0)


def test_each_result_is_reported_once() -> None:
    partition = started()
    first = PartitionSign(beat=1, host="h", done=(part_times(3),))
    assert hear(partition, first, 1.0) == [part_times(3)]
    assert hear(partition, first, 2.0) == []
    second = PartitionSign(beat=2, host="h", done=(part_times(3),), failed=(BAD,))
    assert hear(partition, second, 3.0) == [BAD]
    assert partition.left == [5]


def test_people_see_what_a_host_has_in_hand_until_it_is_lost() -> None:
    partition, progress = started(), RunProgress()
    working = WorkingFile(
        part=3, source="/d", step="tokenize", host="h", source_bytes=4.0, text_bytes=8, tokens=2
    )
    hear(partition, PartitionSign(beat=1, host="h", in_hand=(working,)), 1.0)
    partition.show(progress)
    (shown,), _ = progress.files()
    assert (shown.source, shown.step, shown.host, shown.tokens) == ("/d", "tokenize", "h", 2)
    assert shown.source_bytes == 4.0
    partition.begin_attempt(2.0)
    partition.show(progress)
    assert progress.files()[0] == []
    assert progress.snapshot().tokens == 0


def test_waiting_for_a_worker_is_no_loss() -> None:
    partition = started()
    for now in (0.0, 1e6):
        assert partition.why_lost(Scheduled(), now) is None
        assert partition.why_lost(None, now) is None  # the server does not answer
    taken = 1e6
    assert partition.why_lost(Pending(), taken + START_SECONDS) is None
    assert "no sign of life" in str(partition.why_lost(Pending(), taken + START_SECONDS + 1))


@pytest.mark.parametrize("said", [None, "7.5"])
def test_silence_is_a_loss_whatever_the_server_says(said, monkeypatch) -> None:
    if said is not None:
        monkeypatch.setenv(SILENCE_VARIABLE, said)
    limit = 20.0 if said is None else float(said)
    for state in (Running(), None):
        partition = started()
        hear(partition, PartitionSign(beat=1, host="h7"), 10.0)
        assert partition.why_lost(state, 10.0 + limit) is None
        assert "from host h7" in str(partition.why_lost(state, 11.0 + limit))
        hear(partition, PartitionSign(beat=2, host="h7"), 11.0 + limit)
        assert partition.why_lost(state, 12.0 + limit) is None


@pytest.mark.parametrize("said", ["5", "nan", "soon"])
def test_how_long_silence_may_last_is_a_number_of_beats(said, monkeypatch) -> None:
    monkeypatch.setenv(SILENCE_VARIABLE, said)
    with pytest.raises(UsageError, match=f"{SILENCE_VARIABLE} is '{said}', expected"):
        Silence(0.0)


def test_what_ended_or_was_stopped_is_lost_at_once() -> None:
    partition = started()
    assert "Crashed: no memory" in str(partition.why_lost(Crashed(message="no memory"), 1.0))
    hear(partition, PartitionSign(beat=1, host="h", stopped=True), 1.0)
    assert "stopped on host h" in str(partition.why_lost(Running(), 1.0))


def test_attempts_are_bounded_while_nothing_gets_done() -> None:
    partition = started()
    for _ in range(ATTEMPTS_WITHOUT_GAIN - 1):
        assert partition.may_be_sent_again()
        partition.begin_attempt(0.0)
    hear(partition, PartitionSign(beat=1, host="h", done=(part_times(3),)), 1.0)
    for _ in range(ATTEMPTS_WITHOUT_GAIN):  # a file was done, so the count starts again
        assert partition.may_be_sent_again()
        partition.begin_attempt(0.0)
    assert not partition.may_be_sent_again()


def test_a_host_that_refuses_is_named_and_costs_no_attempt() -> None:
    partition = started()
    for _ in range(2 * ATTEMPTS_WITHOUT_GAIN):
        refused = Failed(name=REFUSED, message="host h7: no such folder")
        assert "host h7: no such folder" in str(partition.why_lost(refused, 1.0))
        assert partition.refused == "host h7: no such folder"
        assert partition.may_be_sent_again()
        partition.begin_attempt(0.0)
        assert partition.refused is None


def test_a_worker_s_run_needs_an_output_that_outlives_it(monkeypatch) -> None:
    require_absolute("out")  # a run that no worker started
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "some deployment")
    with pytest.raises(UsageError, match="removed when the run ends"):
        require_absolute("out")
    for output in ("/out", "~/out", "s3://bucket/out"):
        require_absolute(output)


def test_a_run_waits_for_a_worker_until_one_works() -> None:
    partitions = [Partition(number, [number], 0.0) for number in range(4)]
    assert describe(partitions, "the work pool a", []) == "waiting for a worker of the work pool a"
    assert describe(partitions, "Dask", ["host a: full"]).endswith("; refused by host a: full")
    hear(partitions[0], PartitionSign(beat=1, host="h"), 1.0)
    assert describe(partitions, "Dask", ["host a: full"]) == "sharding on 1 host"
