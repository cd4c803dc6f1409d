"""A run's pages in Prefect, with a real server and a real browser."""

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.core.synthetic import write_parquet_files
from tests.command_line import succeeded, wait_for, workers_of
from tests.servers.browser import Page, browser_page, find_browser, why_none
from tests.servers.prefect.server import artifacts_of, ask, runs_named

HOSTILE = "<img src=x onerror=alert(1)> [link](http:evil) $x$ `c` | d.parquet"
GOOD_FILES = 6


@dataclass(frozen=True)
class Watched:
    """A run that the test looked at while it was going on.

    Attributes:
        live: the artifacts of the run when the table of parts first existed.
    """

    api: str
    run: str
    live: dict[str, dict[str, Any]]
    output: Path
    ended: "subprocess.CompletedProcess[str]"

    def now(self) -> dict[str, Any]:
        """Return the flow run as the server has it."""
        return dict(ask("GET", f"{self.api}/flow_runs/{self.run}"))


@pytest.fixture(scope="module")
def watched(served, tmp_path_factory) -> Watched:
    """A run that stands still while the test looks at it; one of its files is no Parquet file."""
    sources = tmp_path_factory.mktemp("watched_sources")
    for number in range(GOOD_FILES // 2):
        write_parquet_files(sources / f"dump-{number}", 2, 500, seed=number)
    (sources / "dump-1" / HOSTILE).write_bytes(b"no such file")
    output = tmp_path_factory.mktemp("watched") / "out"
    api = served.env["PREFECT_API_URL"]
    arguments = served.shard_arguments(
        output, sources=f"{sources}/**/*.parquet", engine="reference", workers=1
    )
    running = served.start(*arguments)
    wait_for(lambda: list(output.glob("parts/*.json")), running)
    workers = workers_of(running.pid)
    for worker in workers:
        worker.suspend()
    run = ""
    live: dict[str, dict[str, Any]] = {}

    def work_is_shown() -> bool:
        nonlocal run, live
        for found in runs_named(api, f"shard {output}"):
            run = found["id"]
        live = artifacts_of(api, run) if run else {}
        return "shard-hosts" in live and live["shard-progress"]["data"] > 0

    try:
        wait_for(work_is_shown)
        assert running.poll() is None, "it ended too soon to be watched"
    finally:
        for worker in workers:
            worker.resume()
    out, err = running.communicate()
    ended = subprocess.CompletedProcess(running.args, running.returncode, out, err)
    return Watched(api, run, live, output, ended)


def logs_of(api: str, run: str) -> list[str]:
    only = {"flow_run_id": {"any_": [run]}}
    return [log["message"] for log in ask("POST", f"{api}/logs/filter", logs=only, limit=200)]


class TestWhileItRuns:
    def test_progress_with_the_time_left(self, watched) -> None:
        progress = watched.live["shard-progress"]
        assert 0 < progress["data"] < 100
        printed = rf"/{GOOD_FILES + 1} parts, \S+ left, .* tokens, .* MB/s, at \d\d:\d\d UTC$"
        assert re.search(printed, progress["description"])  # true even if the run is killed now

    def test_files_and_hosts(self, watched) -> None:
        rows = json.loads(watched.live["shard-parts"]["data"])
        assert 1 <= len(rows) <= GOOD_FILES + 1
        assert {row["host"] for row in rows} == {platform.node()}
        assert {"tokenize", "write", "done"} & {row["state"] for row in rows if row["tokens"]}
        (host,) = json.loads(watched.live["shard-hosts"]["data"])
        assert host["host"] == platform.node()
        assert float(host["MB/s"]) > 0


@pytest.fixture
def page(tmp_path_factory) -> Iterator[Page]:
    """A tab of a real browser."""
    program = find_browser()
    if program is None:
        pytest.skip(str(why_none()))
    with browser_page(program, tmp_path_factory.mktemp("browser")) as page:
        yield page


class TestAfterwards:
    def test_the_name_of_the_run_says_which_file_and_why(self, watched) -> None:
        assert watched.ended.returncode == 1
        run = watched.now()
        assert run["state"]["type"] == "FAILED"
        assert f"…/dump-1/{HOSTILE}: tokenize: not a whole Parquet file" in run["name"]
        assert f"1 of {GOOD_FILES + 1} parts failed" in run["name"]
        assert f"{HOSTILE}: tokenize: not a whole Parquet file" in run["state"]["message"]

    def test_the_log_is_short_and_has_no_traceback(self, watched) -> None:
        wait_for(lambda: any("Finished" in line for line in logs_of(watched.api, watched.run)))
        lines = logs_of(watched.api, watched.run)
        assert any(HOSTILE in line for line in lines)
        assert not any("Traceback" in line for line in lines)
        assert len(lines) < GOOD_FILES + 2  # task runs, three times as many, log nothing

    def test_artifacts_are_changed_in_place(self, watched) -> None:
        now = artifacts_of(watched.api, watched.run)
        assert set(now) == {"shard-progress", "shard-parts", "shard-hosts", "shard-report"}
        assert all(now[key]["id"] == live["id"] for key, live in watched.live.items())
        assert now["shard-progress"]["data"] == 100
        rows = json.loads(now["shard-parts"]["data"])
        assert [row["state"] for row in rows] == ["failed: tokenize"] + ["done"] * GOOD_FILES
        assert "not a whole Parquet file" in rows[0]["reason"]

    def test_names_of_files_are_only_text_in_the_browser(self, watched, page) -> None:
        artifacts = artifacts_of(watched.api, watched.run)
        site = watched.api.removesuffix("/api")
        (file,) = watched.output.glob("runs/*.html")
        for address, shown in (
            (f"{site}/v2/runs/flow-run/{watched.run}?tab=Artifacts", ["shard-hosts"]),
            (f"{site}/v2/artifacts/artifact/{artifacts['shard-report']['id']}", ["left out"]),
            (f"{site}/artifacts/artifact/{artifacts['shard-report']['id']}", ["left out"]),
            (f"{site}/v2/artifacts/artifact/{artifacts['shard-parts']['id']}", [platform.node()]),
            (file.as_uri(), ["Document lengths", "1 of 7 parts failed"]),
        ):
            page.open(address, "shard-report" if "tab=" in address else "onerror", *shown)
            assert page.evaluate("document.querySelectorAll('img[src=\"x\"]').length") == 0
        pictures = "[...document.images].filter(i => i.src.startsWith('data:') && i.naturalWidth)"
        assert page.evaluate(f"{pictures}.length") == page.evaluate("document.images.length") == 3

    def test_the_next_run_reports_on_all_of_the_dataset(self, watched, served, shardmill) -> None:
        config = watched.now()["parameters"]["config"]
        bad = Path(config["sources"][0]).parents[1] / "dump-1" / HOSTILE
        shutil.copyfile(bad.with_name("000_00000.parquet"), bad)
        arguments = served.shard_arguments(
            watched.output, sources=config["sources"][0], engine="reference", workers=1
        )
        succeeded(served.run(*arguments))
        succeeded(shardmill("verify", watched.output))
        latest = max(watched.output.glob("runs/*.html"))
        text = latest.read_text()
        assert "<strong>published</strong>" in text
        assert f"<td>{GOOD_FILES + 1}, 1 of them new</td>" in text
        assert re.search(r"<td>train</td>\s*<td>[\d,]+</td>\s*<td>[\d,]+</td>", text)
        assert "&lt;|endoftext|&gt; is id" in text
        assert f"<td>sources</td>\n<td>{config['sources'][0]}</td>" in text
        assert str(watched.output / "runs") in text
