"""Time, disk and requests, against sums done by hand."""

import heapq
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.estimate.cost import (
    AHEAD_BYTES,
    COMPARE_RATE,
    MERGE_RATE,
    PARTS_AHEAD,
    READ_RATE,
    SECONDS_A_FILE,
    Cost,
    Machines,
    SecondStage,
    Work,
    cost,
    makespan,
)
from tasks.core.estimate.estimate import parts_of_alike
from tasks.core.estimate.shuffling import second_stage
from tasks.core.shuffle.run_writer import MOST_BLOCKS
from tests.tasks.core.doubles import make_spec

MB = 10**6
WORK = Work(
    files=[100 * MB] * 40,
    text_a_byte=2.0,
    fetched_a_byte=0.0,
    tokens=2000 * MB,
    stored=3000 * MB,
    documents_bytes=100 * MB,
    shards=80,
    uploads=False,
    in_pieces=False,
)
MACHINES = Machines(
    hosts=1, workers=4, text_rate=100 * MB, link=125 * MB, disk=None, request_rate=1000
)


def test_jobs_are_taken_in_turn() -> None:
    assert makespan([3, 1, 1, 1], 2) == 3
    assert makespan([1, 1, 1, 3], 2) == 4
    assert makespan([5], 8) == 5
    assert makespan([], 3) == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=6), st.integers(1, 7))
def test_runs_of_equal_jobs_are_as_if_each_were_taken(
    runs: list[tuple[int, int]], lanes: int
) -> None:
    jobs = [seconds for seconds, count in runs for _ in range(count)]
    free = [0] * lanes
    for seconds in jobs:
        heapq.heapreplace(free, free[0] + seconds)
    assert makespan(jobs, lanes) == max(free)


def test_workers_decide_where_all_is_local() -> None:
    found = cost(WORK, MACHINES)
    # A file takes 2 s of a worker; 40 on 4 are 20 s, and 40 are recorded.
    assert found.bottleneck == "cpu"
    assert found.busy == {"network": 0, "cpu": 20 + 40 * SECONDS_A_FILE, "disk": 0, "requests": 0}
    assert found.seconds == found.busy["cpu"]
    assert found.text_rate == pytest.approx(8000 * MB / found.seconds)
    assert (found.fetched, found.uploaded, found.gets, found.puts) == (0, 0, 0, 0)
    assert found.output == 3100 * MB
    # 6 parts in hand, packed; the sources stay where they are
    assert found.scratch == 6 * 77.5 * MB


def test_twice_the_hosts_take_half_the_time() -> None:
    found = cost(WORK, replace(MACHINES, hosts=2))
    assert found.busy["cpu"] == 10 + 20 * SECONDS_A_FILE


def test_few_files_leave_workers_idle() -> None:
    found = cost(replace(WORK, files=[100 * MB] * 5), MACHINES)
    assert found.busy["cpu"] == pytest.approx(4 + 5 * SECONDS_A_FILE)


def test_the_network_decides_where_it_is_slow() -> None:
    remote = replace(WORK, fetched_a_byte=1.0, uploads=True)
    found = cost(remote, replace(MACHINES, link=12.5 * MB))
    assert found.bottleneck == "network"
    # 4 GB come, 3.1 GB go the other way
    assert found.busy["network"] == 320
    # and the last file is still worked on when all have come
    assert found.seconds == 320 + 2
    assert (found.fetched, found.uploaded) == (4000 * MB, 3100 * MB)
    assert (found.gets, found.puts) == (40, 80 + 2 * 40)
    # 10 parts in hand, packed; 4 files in work and 2 ahead
    assert found.scratch == 10 * 77.5 * MB + 6 * 100 * MB


def test_uploads_decide_where_there_is_more_of_them() -> None:
    found = cost(replace(WORK, uploads=True), replace(MACHINES, link=12.5 * MB))
    assert found.busy["network"] == 248


def test_objects_come_in_pieces() -> None:
    found = cost(replace(WORK, fetched_a_byte=1.0, in_pieces=True), MACHINES)
    assert found.gets == round(4000 * MB / 2**23)


def test_the_disk_takes_what_is_written_on_the_way() -> None:
    found = cost(replace(WORK, fetched_a_byte=0.5), replace(MACHINES, disk=50 * MB))
    # sources 2 GB, output 3.1 GB
    assert found.bottleneck == "disk"
    assert found.busy["disk"] == pytest.approx(5100 / 50)


def test_a_store_that_throttles_decides() -> None:
    found = cost(replace(WORK, uploads=True), replace(MACHINES, request_rate=1))
    assert found.bottleneck == "requests"
    assert found.busy["requests"] == 160


def test_what_lies_ahead_is_bounded() -> None:
    huge = replace(
        WORK, files=[20 * 2**30] * 40, fetched_a_byte=1.0, stored=0.0, documents_bytes=0.0
    )
    assert cost(huge, MACHINES).scratch == 4 * 20 * 2**30 + AHEAD_BYTES


def test_the_numbers_are_the_pipelines_own() -> None:
    from streaming_ext.text.sources import objects
    from tasks.core.estimate.cost import PIECE_BYTES
    from tasks.running.run import LOOK_AHEAD_BYTES
    from tasks.running.worker_pools import LOOK_AHEAD_FILES

    assert (PARTS_AHEAD, AHEAD_BYTES) == (LOOK_AHEAD_FILES, LOOK_AHEAD_BYTES)
    assert objects._PIECE_BYTES == PIECE_BYTES


def test_the_published_ten_hours() -> None:
    """FineWeb-Edu, 1.5T tokens, 4 machines on gigabit: see docs/planning.md for where from."""
    tokens = 1.5e12
    fineweb_edu = Work(
        files=[round(4.3e12 / 2410)] * 2410,
        text_a_byte=4.7 * tokens / 4.3e12,
        fetched_a_byte=1.0,
        tokens=tokens,
        stored=1.2 * tokens,
        documents_bytes=0.01 * tokens,
        shards=45_000,
        uploads=False,
        in_pieces=False,
    )
    # Four processes of tiktoken a machine, as the published script starts.
    theirs = cost(fineweb_edu, replace(MACHINES, hosts=4, workers=4, text_rate=10 * MB))
    assert theirs.bottleneck == "cpu"
    assert 10 <= theirs.seconds / 3600 <= 13
    ours = cost(fineweb_edu, replace(MACHINES, hosts=4, workers=4, text_rate=100 * MB))
    assert ours.bottleneck == "network"
    assert 2.3 <= ours.seconds / 3600 <= 2.6
    assert ours.output / 4 < 570e9  # as published


def test_a_shuffle_writes_runs_and_reads_ranges_of_them() -> None:
    shuffle = SecondStage(bytes=4000 * MB, runs=40, parts=10)
    plain = cost(WORK, MACHINES)
    found = cost(replace(WORK, second=shuffle), MACHINES)
    assert found.runs == 4000 * MB
    more = found.busy["cpu"] - plain.busy["cpu"]
    assert more == pytest.approx(4000 * MB / MERGE_RATE / 4 + 10 * SECONDS_A_FILE)
    assert (found.fetched, found.uploaded, found.gets, found.puts) == (0, 0, 0, 0)
    stored = cost(replace(WORK, second=shuffle, uploads=True), MACHINES)
    assert stored.uploaded == (3100 + 4000) * MB
    # 10 parts read of 40 runs, whose 40 records are read too
    assert stored.gets == 10 * 40 + 40
    # the runs, their records, the shards, and two files a part
    assert stored.puts == 40 + 40 + 80 + 2 * 10
    assert stored.fetched >= 4000 * MB


def test_a_merged_run_lies_twice_on_scratch() -> None:
    second = SecondStage(bytes=4000 * MB, runs=40, parts=10)
    stored = replace(WORK, second=second, uploads=True)
    merged = replace(WORK, second=replace(second, merged=True), uploads=True)
    more = cost(merged, MACHINES).scratch - cost(stored, MACHINES).scratch
    assert more == 4 * 100 * MB  # of each worker that of the part in hand


def test_fifteen_terabytes_of_text_through_object_storage() -> None:
    """32 hosts of 16 cores at 10 Gbit/s, as docs/shuffle.md has them, for two sizes of parts."""
    spec = make_spec(shuffle="documents", shard_size=64 * 2**20)
    text, tokens, documents = 15e12, 4.34e12, 5e9
    machines = Machines(
        hosts=32, workers=16, text_rate=60 * MB, link=1250 * MB, disk=None, request_rate=3500
    )
    found: dict[int, tuple[SecondStage, Cost]] = {}
    for size in (2**30, 12 * 2**30):
        files = parts_of_alike(
            2**30, round(0.4 * text / 2**30), part_size=size, min_part_size=size, may_be_cut=True
        )
        second = second_stage(files, tokens, documents, spec, remote=True)
        assert second is not None
        work = Work(
            files=files, text_a_byte=2.5, fetched_a_byte=1.0, tokens=tokens, stored=0.37 * text,
            documents_bytes=0.01 * tokens, shards=round(0.59 * text / spec.shard_size),
            uploads=True, in_pieces=True, second=second,
        )  # fmt: skip
        found[size] = second, cost(work, machines)
    usual, large = (second.ranges_of_runs / 1e6 for second, _ in found.values())
    assert 115 < usual < 130  # millions
    assert 9 < large < 11
    second, taken = found[12 * 2**30]
    assert second.runs < machines.hosts * machines.workers  # each worker tokenizes one part
    # $0.40 a million GET, $5 a million PUT
    assert taken.gets / 1e6 * 0.4 + taken.puts / 1e6 * 5 < 7
    assert taken.bottleneck == "requests"
    assert taken.seconds / 3600 < 1.1
    assert found[2**30][1].seconds / 3600 > 9
    assert taken.busy["network"] < 10 * 60
    assert taken.busy["cpu"] < 15 * 60
    # each worker holds the index of all runs: offsets, counts and hashes of their blocks
    assert second.runs * MOST_BLOCKS * 24 < 0.8e9


def test_copies_are_looked_for_by_ranges_of_hashes() -> None:
    second = SecondStage(
        bytes=4000 * MB, runs=40, parts=40, shuffled=False, digests=320 * MB, ranges=3,
        kept=280 * MB,
    )  # fmt: skip
    plain = cost(WORK, MACHINES)
    found = cost(replace(WORK, second=second), MACHINES)
    assert found.runs == (4000 + 320) * MB
    assert found.output == plain.output + 280 * MB
    more = found.busy["cpu"] - plain.busy["cpu"]
    compared = 320 * MB / COMPARE_RATE  # by one process alone
    assert more == pytest.approx(4000 * MB / READ_RATE / 4 + compared + 40 * SECONDS_A_FILE)
    # of each part in hand its run and hashes, which are larger than its shards
    assert found.scratch / plain.scratch == pytest.approx((4000 + 320) / 3100)
    stored = cost(replace(WORK, second=second, uploads=True), MACHINES)
    assert stored.fetched == (4000 + 320) * MB
    # each part reads its own run; of hashes 3 ranges of 40 parts, then twice of each list
    assert stored.gets == 40 + 40 + 3 * 40 + 3 * 2 * 40
    # runs, records and hashes of 40 parts; the lists, and the hashes that stay; the shards, and
    # three files a part
    assert stored.puts == 40 + 40 + 40 + 3 + 3 + 80 + 3 * 40
