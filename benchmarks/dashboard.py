"""What watching costs: task runs, API calls, the server's database and pages, for many files."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import asyncpg
import httpx
import psutil

from benchmarks import common
from tasks.core.synthetic import write_parquet_files
from tests.servers.browser import Page, browser_page, find_browser
from tests.servers.prefect.server import free_port, prefect_server

_TABLES = ("task_run", "task_run_state", "log", "events")
_DISTINCT = 24  # source files that are made; the others are copies of them
# Until all is recorded: the server writes what makes no whole batch after five seconds.
_QUIET_SECONDS, _MOST_BEHIND = 6.0, 300.0
_SETTLE_SECONDS = 3.0  # in which a page may still be busy
_CALL = re.compile(r'"(GET|POST|PATCH|PUT|DELETE) /api/([a-z_]+)')


def make_sources(folder: Path, files: int, documents: int) -> Path:
    """Many small files, most of them copies."""
    first = write_parquet_files(folder, min(files, _DISTINCT), documents, seed=0)
    for number in range(len(first), files):
        shutil.copyfile(first[number % len(first)], folder / f"{number:05}_copy.parquet")
    return folder


@dataclass(frozen=True)
class Database:
    """An empty database for a server: its URL, and how to ask it for a number."""

    url: str
    ask: Callable[[str], int]
    size: str  # what asks for its size in bytes

    def rows(self) -> dict[str, int]:
        """How many rows the tables have that grow with a run."""
        return {table: self.ask(f"SELECT count(*) FROM {table}") for table in _TABLES}  # noqa: S608


@contextmanager
def sqlite(folder: Path) -> Iterator[Database]:
    """The server's default."""
    file = folder / "prefect.db"

    def ask(query: str) -> int:
        with closing(sqlite3.connect(file, timeout=60)) as connection:
            return int(connection.execute(query).fetchone()[0])

    size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    yield Database(f"sqlite+aiosqlite:///{file}", ask, size)


@contextmanager
def postgresql(folder: Path) -> Iterator[Database]:
    """A server of PostgreSQL on loopback."""
    programs = find_postgresql()
    assert programs is not None
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    data, port = folder / "data", free_port()
    data.mkdir(mode=0o700)
    if user:
        shutil.chown(data, user)

    def run(program: str, *arguments: object) -> None:
        command = [str(programs / program), *map(str, arguments)]
        # No pipe: the server that is started would keep it open.
        subprocess.run(command, user=user, cwd="/", check=True, stdout=subprocess.DEVNULL)

    run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync")
    options = f"-p {port} -h 127.0.0.1 -k {data}"
    run("pg_ctl", "-D", data, "-o", options, "-l", data / "log", "-w", "start")
    address = f"postgres@127.0.0.1:{port}/postgres"

    async def ask(query: str) -> int:
        connection = await asyncpg.connect(f"postgresql://{address}")
        try:
            return int(await connection.fetchval(query))
        finally:
            await connection.close()

    try:
        yield Database(
            f"postgresql+asyncpg://{address}",
            lambda query: asyncio.run(ask(query)),
            "SELECT pg_database_size('postgres')",
        )
    finally:
        run("pg_ctl", "-D", data, "-m", "fast", "-w", "stop")


def find_postgresql() -> Path | None:
    """The folder of PostgreSQL's programs."""
    found = [shutil.which("initdb"), *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))]
    return next((Path(path).parent for path in found if path), None)


def shard(sources: Path, output: Path, tokenizer: Path, api: str | None) -> dict[str, float]:
    """Run the pipeline as a user does; seconds of the work, and of the whole command."""
    kept = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    with mock.patch.dict(os.environ, kept | ({"PREFECT_API_URL": api} if api else {}), clear=True):
        done = common.shard([sources], output, tokenizer)
    return {"seconds": done.seconds, "whole command": done.measured.seconds}


def count_calls(log: Path) -> dict[str, int]:
    """Calls of the API by what they are about, as the server's access log has them."""
    calls: dict[str, int] = {}
    for found in _CALL.finditer(log.read_text()):
        calls[found[2]] = calls.get(found[2], 0) + 1
    return calls


def page_times(page: Page, api: str, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds until a page shows what it is for, and of CPU that it takes the browser."""
    site = api.removesuffix("/api")
    (run,) = httpx.post(f"{api}/flow_runs/filter", json={"limit": 1}, timeout=60).json()
    listed = httpx.post(f"{api}/artifacts/filter", json={"limit": 50}, timeout=60).json()
    artifacts = {artifact["key"]: artifact["id"] for artifact in listed}
    of_run = f"{site}/v2/runs/flow-run/{run['id']}"
    pages = {
        "list of runs": (f"{site}/v2/runs", "shard-dataset"),
        "run, Logs": (f"{of_run}?tab=Logs", "Beginning flow run"),
        "run, Task Runs": (f"{of_run}?tab=TaskRuns", "Task runs\n"),
        "run, Artifacts": (f"{of_run}?tab=Artifacts", "shard-report"),
        "report": (f"{site}/v2/artifacts/artifact/{artifacts['shard-report']}", "Slowest parts"),
    }
    if "shard-parts" in artifacts:
        files = f"{site}/v2/artifacts/artifact/{artifacts['shard-parts']}"
        pages["table of parts"] = (files, ".parquet")
    times: dict[str, dict[str, float]] = {}
    for name, (url, expected) in pages.items():
        shown, busy = [], []
        for _ in range(rounds):
            page.open("about:blank")
            before, began = _busy(), time.monotonic()
            page.open(url, expected)
            shown.append(time.monotonic() - began)
            time.sleep(_SETTLE_SECONDS)
            busy.append(_busy() - before)
        print(f"{name}: {shown[-1]:.1f} s", file=sys.stderr)
        times[name] = {"shown": statistics.median(shown), "busy": statistics.median(busy)}
    return times


def _busy() -> float:
    """CPU seconds of the browser, all its processes together."""
    processes = [p for p in psutil.Process().children(recursive=True) if "chrom" in p.name()]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def measure(
    database: Callable[[Path], AbstractContextManager[Database]],
    sources: Path,
    scratch: Path,
    tokenizer: Path,
    rounds: int,
) -> dict[str, Any]:
    """One run with a server on a new database, and its pages afterwards."""
    with tempfile.TemporaryDirectory(prefix="shardmill-bench-") as name:
        home = Path(name)
        home.chmod(0o755)  # PostgreSQL may run as another user
        (home / "database").mkdir()
        with database(home / "database") as data:
            settings = {
                "PREFECT_API_DATABASE_CONNECTION_URL": data.url,
                "PREFECT_SERVER_LOGGING_LEVEL": "INFO",
            }
            with mock.patch.dict(os.environ, settings), prefect_server(home) as api:
                before = data.ask(data.size)
                result: dict[str, Any] = shard(sources, scratch / "watched", tokenizer, api)
                print(f"ran for {result['seconds']:.0f} s", file=sys.stderr)
                result["rows"], result["behind"] = settle(data.rows)
                print(f"recorded {result['behind']:.0f} s later", file=sys.stderr)
                result["calls"] = count_calls(home / "server.log")
                result["bytes"] = data.ask(data.size) - before
                program = find_browser()
                if program is not None and rounds:
                    with browser_page(program, home / "browser") as page:
                        result["pages"] = page_times(page, api, rounds)
    return result


def settle(count: Callable[[], dict[str, int]]) -> tuple[dict[str, int], float]:
    """Counts that have stopped changing, and the seconds until then.

    Task runs are recorded behind the run's back: the server takes them in as events.
    """
    began = changed = time.monotonic()
    last = count()
    while time.monotonic() < min(changed + _QUIET_SECONDS, began + _MOST_BEHIND):
        time.sleep(1)
        now = count()
        if now != last:
            last, changed = now, time.monotonic()
    return last, changed - began


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2400)
    parser.add_argument("--documents", type=int, default=20, help="in each file")
    parser.add_argument("--rounds", type=int, default=3, help="of looking at the pages")
    parser.add_argument("--record-at-once", default="50", help="of task runs; Prefect's own is 1")
    parser.add_argument("--only", nargs="*", help="embedded, SQLite, PostgreSQL")
    parser.add_argument("--scratch", type=Path, default=common.CACHE / "scratch")
    parser.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    args = parser.parse_args()
    os.environ["PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE"] = args.record_at_once
    tokenizer = common.default_tokenizer()
    sources = args.scratch / f"watched-{args.files}-{args.documents}"
    if not sources.exists():
        make_sources(sources, args.files, args.documents)
    databases: dict[str, Callable[[Path], AbstractContextManager[Database]]] = {"SQLite": sqlite}
    if find_postgresql() is None:
        print("PostgreSQL is left out: there is no initdb.", file=sys.stderr)
    else:
        databases["PostgreSQL"] = postgresql
    chosen = args.only or ["embedded", *databases]
    results: dict[str, dict[str, Any]] = {}
    if "embedded" in chosen:
        results["embedded"] = shard(sources, args.scratch / "watched", tokenizer, None)
    for name in chosen:
        if name in databases:
            results[name] = measure(databases[name], sources, args.scratch, tokenizer, args.rounds)
    print_tables(results, args.files)
    common.save(args.result, files=args.files, results=results)


def print_tables(results: dict[str, dict[str, Any]], files: int) -> None:
    """What a run costs, and how long its pages take."""
    columns = (
        "server",
        "seconds",
        "whole command",
        "behind",
        *_TABLES,
        "API calls",
        "of them artifacts",
        "database, MB",
        "KB a file",
    )
    rows = []
    for name, result in results.items():
        row = [name, f"{result['seconds']:.1f}", f"{result['whole command']:.1f}"]
        if "rows" in result:
            calls, size = result["calls"], result["bytes"]
            row.append(f"{result['behind']:.0f}")
            row += [f"{rows_there:,}" for rows_there in result["rows"].values()]
            row += [f"{sum(calls.values()):,}", f"{calls.get('artifacts', 0):,}"]
            row += [f"{size / 1e6:.1f}", f"{size / 1e3 / files:.1f}"]
        rows.append([*row, *[""] * (len(columns) - len(row))])
    print(common.table(columns, rows))
    watched = {name: result["pages"] for name, result in results.items() if "pages" in result}
    if watched:
        print()
        columns = ("page", *(f"{name}: {what}" for name in watched for what in ("shown", "busy")))
        pages = next(iter(watched.values()))
        rows = [
            [page, *(f"{of[page][what]:.2f}" for of in watched.values() for what in of[page])]
            for page in pages
        ]
        print(common.table(columns, rows))


if __name__ == "__main__":
    main()
