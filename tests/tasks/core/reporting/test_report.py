"""The report of a run: what may differ between two runs, and its path."""

import platform
from datetime import UTC, datetime
from typing import Any

from streaming_ext.format.schema import from_json, to_json
from tasks.core.reporting.report import (
    FailedFile,
    PartTimes,
    RunReport,
    installed_versions,
    report_path,
)


def part_times(part: int = 0, **changes: Any) -> PartTimes:
    values: dict[str, Any] = {
        "part": part,
        "source": "/a",
        "text_bytes": 1,
        "tokens": 1,
        "shard_bytes": 1,
        "tokenize_seconds": 1.0,
        "write_seconds": 1.0,
    }
    return PartTimes(**(values | changes))


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
            part_times(
                text_bytes=3_000_000,
                tokens=700,
                shard_bytes=1400,
                tokenize_seconds=1.5,
                write_seconds=0.5,
            ),
        ),
    }
    return RunReport(**(values | changes))


def test_comes_back_from_a_path_of_its_own() -> None:
    report = make_report()
    assert report_path(report, ".json") == "runs/20310203T040506Z-01234567.json"
    assert from_json(RunReport, to_json(report), where="") == report
    assert report_path(make_report(run="other"), ".html").endswith("Z-other.html")


def test_a_failure_names_its_file_once() -> None:
    for reason in ("/b: no space", "no space"):
        failed = FailedFile(part=1, source="/b", step="tokenize", reason=reason)
        assert str(failed) == "/b: tokenize: no space"


def test_installed_versions() -> None:
    versions = installed_versions()
    assert versions["python"] == platform.python_version()
    assert {"shardmill", "pyarrow", "zstd"} <= set(versions)
    assert all(versions.values())
