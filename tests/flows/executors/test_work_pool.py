"""What a run on a work pool says that it is doing."""

from flows.executors.sent_partition import SentPartition
from flows.executors.work_pool import phase


def test_a_run_waits_for_a_worker_only_until_one_has_worked() -> None:
    partitions = [SentPartition(number, [number]) for number in range(4)]
    assert phase(partitions, "hosts", []) == "waiting for a worker of the work pool hosts"
    assert phase(partitions, "hosts", ["host a: full"]).endswith("; refused by host a: full")
    partitions[0].ended = partitions[1].ended = True
    assert phase(partitions, "hosts", []) == "sharding; 2 of 4 partitions wait for a host"
