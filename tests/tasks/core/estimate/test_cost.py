"""Time and disk, compared with sums done by hand."""

import numpy as np
import pytest

from streaming_ext.format.spec import NearRule
from tasks.core.estimate.config import EstimateConfig
from tasks.core.estimate.estimate import (
    COMPARE_RATE,
    MERGE_RATE,
    READ_RATE,
    SECONDS_PER_PART,
    START_SECONDS,
    Cost,
    Quantity,
    Work,
    cost,
    makespan,
    ratio,
)
from tests.tasks.core.doubles import make_spec

MB = 10**6
WORK = Work(
    parts=[100 * MB] * 40,
    text=8000 * MB,
    fetched=0.0,
    output=3100 * MB,
    documents=10 * MB,
    tokens=2000 * MB,
    uploads=False,
)


def taken(
    work: Work = WORK,
    *,
    link: float = 125 * MB,
    shuffle: str | None = None,
    deduplicate: str | None = None,
    near: NearRule | None = None,
    **machines: float,
) -> Cost:
    """Return the cost with four workers per host, each of which does 100 MB of text per second."""
    config = EstimateConfig(sources=("x",), tokenizer="y", workers=4, **machines)
    spec = make_spec(shuffle=shuffle, deduplicate=deduplicate, near=near)
    return cost(work, config, spec, rate=100 * MB, link=link)


def test_each_job_goes_to_the_worker_that_is_free_first() -> None:
    assert makespan([3, 1, 1, 1], 2) == 3
    assert makespan([1, 1, 1, 3], 2) == 4
    assert makespan([5], 8) == 5
    assert makespan([1] * 1001, 2) == pytest.approx(501, abs=1)


def test_workers_decide_if_everything_is_local() -> None:
    found = taken()
    # A part takes a worker 2 s; 40 parts on 4 workers take 20 s, and 40 parts are recorded.
    assert found.bottleneck == "workers"
    assert found.busy == {"network": 0, "workers": 20 + 40 * SECONDS_PER_PART, "disk": 0}
    assert found.seconds == START_SECONDS + found.busy["workers"]
    assert found.text_rate == pytest.approx(8000 * MB / found.seconds)
    assert (found.fetched, found.uploaded, found.output, found.spills) == (0, 0, 3100 * MB, 0)
    # 6 packed parts lie on scratch; the sources stay where they are.
    assert found.scratch == pytest.approx(6 * 77.5 * MB)


def test_twice_the_hosts_take_half_the_time_and_few_parts_leave_workers_idle() -> None:
    assert taken(hosts=2).busy["workers"] == 10 + 20 * SECONDS_PER_PART
    few = WORK._replace(parts=[100 * MB] * 5, text=1000 * MB)
    assert taken(few).busy["workers"] == pytest.approx(4 + 5 * SECONDS_PER_PART)


def test_a_slow_network_decides() -> None:
    found = taken(WORK._replace(fetched=4000 * MB, uploads=True), link=12.5 * MB)
    assert found.bottleneck == "network"
    assert found.busy["network"] == 320  # 4 GB are fetched, 3.1 GB uploaded
    assert found.seconds == START_SECONDS + 320 + 2  # the last part is worked on after its download
    assert (found.fetched, found.uploaded) == (4000 * MB, 3100 * MB)
    assert found.scratch == pytest.approx(10 * (100 + 77.5) * MB)
    assert taken(WORK._replace(uploads=True), link=12.5 * MB).busy["network"] == 248


def test_a_slow_disk_decides() -> None:
    found = taken(WORK._replace(fetched=2000 * MB), disk=50 * MB)
    assert found.bottleneck == "disk"
    assert found.busy["disk"] == pytest.approx((2000 + 3100) / 50)


def test_spills_of_a_shuffle_are_written_and_read_again() -> None:
    found = taken(shuffle="documents")
    assert found.spills == 2 * 2000 * MB + 46 * 10 * MB  # ids of two bytes
    more = found.busy["workers"] - taken().busy["workers"]
    assert more == pytest.approx(found.spills / MERGE_RATE / 4 + 40 * SECONDS_PER_PART)
    assert found.fetched == found.uploaded == 0
    stored = taken(WORK._replace(uploads=True), shuffle="documents")
    assert stored.uploaded == stored.output + found.spills
    assert stored.fetched == found.spills


def test_hashes_are_compared_by_one_process_and_some_stay() -> None:
    found = taken(deduplicate="exact")
    assert found.spills == 4000 * MB + (46 + 36) * 10 * MB
    assert found.output == WORK.output + 28 * 10 * MB
    more = found.busy["workers"] - taken().busy["workers"]
    read = (found.spills - 360 * MB) / READ_RATE / 4
    assert more == pytest.approx(read + 360 * MB / COMPARE_RATE + 40 * SECONDS_PER_PART)


def test_sketches_stand_in_the_spills_once_for_each_band() -> None:
    rule = NearRule(similarity=0.8, bands=2, rows=8, ngram=5)
    found = taken(deduplicate="near", near=rule)
    assert found.spills == 4000 * MB + (46 + 3 * (16 + 28)) * 10 * MB
    assert found.output == WORK.output + (16 + 14) * 10 * MB


# --- from a sample to a total


def test_a_full_sample_is_exact_and_one_of_many_has_no_interval() -> None:
    assert ratio([10, 10], [40, 60], read=1.0) == Quantity(value=0.2, error=0.0)
    assert ratio([2], [10], read=0.1) == Quantity(value=0.2, error=None)


def test_the_interval_by_hand() -> None:
    # Totals 1 and 3 of sizes 10 and 10: r = 0.2, residuals -1 and 1, s^2 = 2.
    # Half of it read: var = (1 - 1/2) * 2 * 2 / 20^2 = 0.005; t(1) = 12.71.
    found = ratio([1, 3], [10, 10], read=0.5)
    assert found.value == pytest.approx(0.2)
    assert found.error == pytest.approx(12.71 * np.sqrt(0.005) / 0.2)
    assert found.times(50) == Quantity(value=found.value * 50, error=found.error)


@pytest.mark.parametrize("drawn", [5, 12])
def test_95_of_100_intervals_hold_the_truth(drawn) -> None:
    """The 40 files differ in size and in tokens per byte."""
    rng = np.random.default_rng(drawn)
    inside, trials = 0, 1000
    for _ in range(trials):
        sizes = rng.lognormal(0, 0.5, 40)
        counts = sizes * rng.normal(0.25, 0.02, 40)
        chosen = rng.choice(40, drawn, replace=False)
        read = sizes[chosen].sum() / sizes.sum()
        found = ratio(counts[chosen], sizes[chosen], read=read)
        inside += abs(found.value - counts.sum() / sizes.sum()) <= found.error * found.value
    assert 0.9 <= inside / trials <= 0.98
