"""The report of a run: what may differ between two runs, and where it is put."""

import platform
from datetime import UTC, datetime
from typing import Any

import pytest

from streaming_ext.format.schema import from_json, to_json
from tasks.core.reporting.report import (
    FailedFile,
    PartTimes,
    RunReport,
    installed_versions,
    report_path,
)


def make_report(**changes: Any) -> RunReport:
    values: dict[str, Any] = {
        "run": "0123456789abcdef",
        "began": datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC),
        "seconds": 2.0,
        "host": "here",
        "cores": 2,
        "workers": 2,
        "versions": {},
        "engine": "auto",
        "output": "/out",
        "files": 2,
        "files_skipped": 0,
        "files_done": 1,
        "failed": (FailedFile(part=1, source="/b", step="tokenize", reason="/b: damaged"),),
        "text_bytes": 3_000_000,
        "tokens": 700,
        "shard_bytes": 1400,
        "published": False,
        "parts": (
            PartTimes(
                part=0, source="/a", text_bytes=3_000_000, tokens=700, shard_bytes=1400,
                tokenize_seconds=1.5, write_seconds=0.5,
            ),
        ),
    }  # fmt: skip
    return RunReport(**(values | changes))


def test_comes_back_from_a_path_of_its_own() -> None:
    report = make_report()
    assert report_path(report, ".json") == "runs/20310203T040506Z-01234567.json"
    assert from_json(RunReport, to_json(report), where="") == report
    assert report_path(make_report(run="other"), ".html").endswith("Z-other.html")


def times(**changes: Any) -> PartTimes:
    values: dict[str, Any] = {
        "part": 0, "source": "/a", "text_bytes": 1, "tokens": 1, "shard_bytes": 1,
        "tokenize_seconds": 2.0, "write_seconds": 1.0,
    }  # fmt: skip
    return PartTimes(**(values | changes))


def test_the_rate_is_that_of_the_work() -> None:
    """Two parts at once and one later, in five of a hundred seconds."""
    parts = (times(tokenized_at=52.0), times(tokenized_at=53.0), times(tokenized_at=90.0))
    report = make_report(seconds=100.0, parts=parts, text_bytes=14_000_000)
    assert report.work_seconds == 4 + 3
    assert report.megabytes_per_second == 2.0
    again = report.model_copy(update={"merged": (times(tokenized_at=99.0),)})
    assert again.work_seconds == 4 + 3 + 3


def test_bytes_a_token_leave_the_ends_of_texts_out() -> None:
    report = make_report(text_bytes=400, tokens=110, parts=(times(documents=10),))
    assert report.bytes_per_token == 4.0


@pytest.mark.parametrize(("seconds", "rate"), [(2.0, 1.5), (0.5, 6.0), (0.0, 0.0)])
def test_rate(seconds: float, rate: float) -> None:
    assert make_report(seconds=seconds).megabytes_per_second == rate


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("/b: damaged from row 3 on", "/b: tokenize: damaged from row 3 on"),
        ("no space", "/b: tokenize: no space"),
    ],
)
def test_a_failure_names_its_file_once(reason: str, expected: str) -> None:
    failed = FailedFile(part=1, source="/b", step="tokenize", reason=reason)
    assert str(failed) == expected


def test_installed_versions() -> None:
    versions = installed_versions()
    assert versions["python"] == platform.python_version()
    assert {"shardmill", "pyarrow", "zstd"} <= set(versions)
    assert all(versions.values())
