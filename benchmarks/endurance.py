"""FineWeb-Edu in small, sharded to S3 while everything around it fails: nothing is lost.

    python -m benchmarks.endurance [--files 2410] [--rounds 6] [--seed 0]

The command `shardmill shard` reads 2,410 files from a real S3 server and writes to it, with a real
Prefect server, while faults drawn at random strike all along; whenever it ends before its work is
done, the same command is given again. What comes out must be, byte for byte, what an undisturbed
run makes on the local disk.
"""

import argparse
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import common
from benchmarks.common import CACHE
from streaming_ext.format.layout import MANIFEST
from streaming_ext.format.reading import record_of
from tasks.core.synthetic import make_documents
from tests.command_line import assert_same_dataset, workers_of
from tests.conftest import clean_environment
from tests.servers.fault_proxy import FaultProxy, Faults, fault_proxy
from tests.servers.prefect.server import PrefectServer
from tests.servers.storage.swift import (
    DAEMONS,
    SwiftServer,
    aws_environment,
    download_all,
    s3_client,
    swift_server,
)

WORKER, RUN, SLOW, CUT = "worker killed", "run killed", "503 SlowDown", "connections cut"
FULL, S3, PREFECT = "scratch full", "S3 restarted", "Prefect restarted"
KINDS = (WORKER, RUN, SLOW, CUT, FULL, S3, PREFECT)
OFTEN = (WORKER, SLOW, CUT)  # twice a round: they cost little
ENDING = (RUN, FULL, S3, PREFECT)  # after these the command may have to be given again
_SPAN = (0.02, 0.9)  # of the files
_LAST = 12  # files that no fault waits for: they are in hand together and end nearly at once


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, and the number of recorded files from which on it may strike."""

    kind: str
    at: int


def draw(files: int, rounds: int, kinds: Sequence[str], rng: random.Random) -> list[Fault]:
    """The faults of so many rounds, in the order in which they strike."""
    drawn: list[str] = []
    for _ in range(rounds):
        deck = [*kinds, *(kind for kind in OFTEN if kind in kinds)]
        rng.shuffle(deck)
        drawn += deck
    first, last = (files * part for part in _SPAN)
    last = max(first, min(last, files - _LAST))
    moments = sorted(int(rng.uniform(first, last)) for _ in drawn)
    return [Fault(kind, at) for kind, at in zip(drawn, moments, strict=True)]


FILES = 2410
_WEEKS = {
    2013: "20 48",
    2014: "10 15 23 35 41 42 49 52",
    2015: "06 11 14 18 22 27 32 35 40 48",
    2016: "07 18 22 26 30 36 40 44 50",
    2017: "04 09 13 17 22 26 30 34 39 43 47 51",
    2018: "05 09 13 17 22 26 30 34 39 43 47 51",
    2019: "04 09 13 18 22 26 30 35 39 43 47 51",
    2020: "05 10 16 24 29 34 40 45 50",
    2021: "04 10 17 21 25 31 39 43 49",
    2022: "05 21 27 33 40 49",
    2023: "06 14 23 40 50",
    2024: "10",
}
DUMPS = tuple(f"CC-MAIN-{year}-{week}" for year, weeks in _WEEKS.items() for week in weeks.split())
_FEWEST_A_DUMP = 8
_DOCUMENTS = (1, 60)  # of a file, evenly spread over orders of magnitude
_POOL = 2000  # documents that files are dealt from
_THREADS = 8


def names(files: int) -> list[str]:
    """`data/DUMP/train-00000-of-00014.parquet` and so on: so many, over as many dumps as fit."""
    dumps = DUMPS[: max(1, files // _FEWEST_A_DUMP)]
    found = []
    for number, dump in enumerate(dumps):
        count = files * (number + 1) // len(dumps) - files * number // len(dumps)
        found += [f"data/{dump}/train-{i:05}-of-{count:05}.parquet" for i in range(count)]
    return found


def write_sources(folder: Path, files: int, seed: int) -> int:
    """Write the files; returns their bytes. A function of the arguments alone."""
    rng = random.Random(seed)
    pool = make_documents(_POOL, seed)
    for name in names(files):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        count = round(exp(rng.uniform(*map(log, _DOCUMENTS))))
        table = _table(rng.choices(pool, k=count), path.parent.name, path.stem, rng)
        pq.write_table(table, path, compression="zstd", row_group_size=1000)
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def _table(texts: list[str], dump: str, file: str, rng: random.Random) -> pa.Table:
    scores = [rng.uniform(2.5, 5) for _ in texts]
    where = [f"{dump}/{file}/{row:06}" for row in range(len(texts))]
    return pa.table(
        {
            "text": texts,
            "id": [f"<urn:uuid:{rng.getrandbits(128):032x}>" for _ in texts],
            "dump": [dump] * len(texts),
            "url": [f"https://example.org/{name}" for name in where],
            "file_path": [f"s3://example/crawl-data/{name}.warc.gz" for name in where],
            "language": ["en"] * len(texts),
            "language_score": [rng.uniform(0.65, 1) for _ in texts],
            "token_count": [len(text) // 4 for text in texts],
            "score": scores,
            "int_score": [round(score) for score in scores],
        }
    )


def upload(folder: Path, endpoint: str, bucket: str) -> str:
    """Put the files into a bucket; returns the pattern that names them there."""
    client = s3_client(endpoint)

    def put(file: Path) -> None:
        key = f"fineweb-edu/{file.relative_to(folder).as_posix()}"
        client.put_object(Bucket=bucket, Key=key, Body=file.read_bytes())

    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(put, sorted(folder.rglob("*.parquet"))):
            pass
    client.close()
    return f"s3://{bucket}/fineweb-edu/data/*/*.parquet"


_GOES_ON = {1, -signal.SIGKILL}  # it failed and said why, or we killed it
_TAIL = 4000


class Command:
    """`shardmill shard`, its processes in a group of their own, each start with a log of its own.

    Args:
        arguments: the arguments of the command.
        environment: the environment of its processes.
        logs: the folder of its output.
        most: the number of commands after which something is wrong.
    """

    def __init__(
        self, arguments: Sequence[object], environment: Mapping[str, str], logs: Path, most: int
    ) -> None:
        self._command = [sys.executable, "-P", "-m", "flows.cli", *map(str, arguments)]
        self._environment = environment
        self._logs = logs
        self._most = most
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Give the command."""
        assert self.starts < self._most, f"not done by {self._most} commands: {self.said()}"
        self.starts += 1
        self._logs.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def _log(self) -> Path:
        return self._logs / f"{self.starts:03}.log"

    def said(self) -> str:
        """The end of what the last command printed."""
        return self._log.read_text()[-_TAIL:]

    @property
    def ended(self) -> bool:
        """True if it has ended, well or not."""
        return self._process is not None and self._process.poll() is not None

    def is_done(self) -> bool:
        """Return True if its work is done; give it again if it ended before that.

        Raises:
            AssertionError: it ended as no fault should make it end.
        """
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return False
        assert "Traceback" not in self._log.read_text(), self.said()
        if code == 0:
            return True
        assert code in _GOES_ON, f"exit code {code}: {self.said()}"
        self.start()
        return False

    def workers(self) -> list[int]:
        """Its worker processes, of both kinds."""
        assert self._process is not None
        return sorted(worker.pid for worker in workers_of(self._process.pid))

    def kill(self, *, alone: bool) -> None:
        """kill -9 of the process itself, or of its workers too."""
        assert self._process is not None
        (os.kill if alone else os.killpg)(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it, whatever it does."""
        if self._process is not None and not self.ended:
            self.kill(alone=False)


BUCKET = "endurance"  # records hold the names of sources, so it is always the same
_SCRATCH_SIZE = "64m"
_OWN_MOUNTS = "SHARDMILL_BENCH_OWN_MOUNTS"


@dataclass(frozen=True, slots=True)
class Site:
    """The servers, and where the run works.

    Attributes:
        client: the client of S3, past the proxy.
        link: the rate to S3 and back, in bytes per second; None for no limit.
        scratch: the scratch folder of the disturbed run; a disk of its own if `bounded`.
    """

    s3: SwiftServer
    wire: FaultProxy
    prefect: PrefectServer
    client: Any
    folder: Path
    scratch: Path
    bounded: bool
    link: float | None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a run: S3 behind the proxy, Prefect, no settings of the user."""
        return {
            **clean_environment(self.folder / "home"),
            "XDG_CACHE_HOME": str(CACHE / "cache"),  # what is known of the tokenizer
            **aws_environment(self.wire.url),
            "PREFECT_API_URL": self.prefect.url,
        }

    def calm(self) -> None:
        """The wire as it is without faults."""
        self.wire.inflict(Faults(bytes_per_second=self.link))

    def recorded(self, output: str) -> int:
        """Count the files that are recorded below a prefix of the bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=f"{output}/parts/"
        )
        return sum(page["KeyCount"] for page in pages)

    def kill_s3(self) -> None:
        """kill -9 of all its daemons, first of the one that answers."""
        for kind in reversed(DAEMONS):
            self.s3.kill(kind)

    def start_s3(self) -> None:
        """Start it again; it answers when all of it is there."""
        for kind in DAEMONS:
            self.s3.start(kind)


@contextmanager
def open_site(folder: Path, link: float | None) -> Iterator[Site]:
    """Start the servers; they end with the block."""
    with ExitStack() as stack:
        s3 = stack.enter_context(swift_server(folder / "swift"))
        wire = stack.enter_context(fault_proxy(s3.port))
        (folder / "prefect").mkdir()
        prefect = PrefectServer(folder / "prefect")
        prefect.start()
        stack.callback(prefect.stop)
        scratch = folder / "scratch"
        scratch.mkdir()
        bounded = _OWN_MOUNTS in os.environ
        if bounded:  # gone with the namespace, however this process ends
            size = f"size={_SCRATCH_SIZE}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", scratch], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", scratch], check=True)
        client = s3_client(s3.url)
        stack.callback(client.close)
        client.create_bucket(Bucket=BUCKET)
        yield Site(s3, wire, prefect, client, folder, scratch, bounded, link)


def enter_own_mounts() -> None:
    """Go on in a mount namespace of this process's own, where a small disk can be had.

    Where the system allows none, nothing happens, and no disk will be filled.
    """
    command = ["unshare", "--mount", "--map-root-user"]
    if _OWN_MOUNTS in os.environ or shutil.which(command[0]) is None:
        return
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        return
    script = [sys.executable, "-m", "benchmarks.endurance", *sys.argv[1:]]
    os.execvpe(command[0], [*command, *script], {**os.environ, _OWN_MOUNTS: "1"})  # noqa: S606


_STRIKE_LOOK_SECONDS = 0.05
_STRIKE_SECONDS = 10.0  # for connections to come by and meet their fault
_FULL_SECONDS = 30.0  # that a disk stays full unless the run has ended before
_DOWN = (0.2, 3.0)  # seconds that a server is away, beside its start
_SLOW_TIMES, _CUT_TIMES = (2, 8), (1, 4)  # connections that a fault of the wire befalls
_CUT_UP, _CUT_DOWN = (100, 60_000), (0.0, 5.0)  # bytes; powers of ten


def inflict(kind: str, site: Site, command: Command, rng: random.Random) -> int:
    """Make one fault happen; returns how many processes, servers or connections it struck."""
    struck = _MEANS[kind](site, command, rng)
    print(f"  {site.recorded('disturbed'):5} files: {kind}, {struck}", flush=True)
    return struck


def _kill_worker(_: Site, command: Command, rng: random.Random) -> int:
    while not command.is_done():
        if workers := command.workers():
            try:
                os.kill(rng.choice(workers), signal.SIGKILL)
            except ProcessLookupError:  # it ended with its run; the next run has others
                continue
            return 1
        time.sleep(_STRIKE_LOOK_SECONDS)
    return 0


def _kill_run(_: Site, command: Command, rng: random.Random) -> int:
    if command.is_done():
        return 0
    command.kill(alone=rng.random() < 0.5)
    return 1


def _slow_down(site: Site, command: Command, rng: random.Random) -> int:
    faults = Faults(answer=(503, "SlowDown"), times=rng.randint(*_SLOW_TIMES))
    return _on_the_wire(site, command, faults)


def _cut(site: Site, command: Command, rng: random.Random) -> int:
    times = rng.randint(*_CUT_TIMES)
    if rng.random() < 0.5:
        faults = Faults(cut_up=rng.randint(*_CUT_UP), times=times)
    else:
        faults = Faults(cut_down=int(10 ** rng.uniform(*_CUT_DOWN)), times=times)
    return _on_the_wire(site, command, faults)


def _on_the_wire(site: Site, command: Command, faults: Faults) -> int:
    site.wire.inflict(faults)
    deadline = time.monotonic() + _STRIKE_SECONDS
    while site.wire.struck < (faults.times or 1) and time.monotonic() < deadline:
        if command.is_done():
            break
        time.sleep(_STRIKE_LOOK_SECONDS)
    struck = site.wire.struck
    site.calm()
    return struck


def _fill_scratch(site: Site, command: Command, _: random.Random) -> int:
    filler = site.scratch / "filler"
    deadline = time.monotonic() + _FULL_SECONDS
    while not command.ended and time.monotonic() < deadline:
        _fill(filler)
        time.sleep(_STRIKE_LOOK_SECONDS)
    filler.unlink(missing_ok=True)
    return int(not command.is_done())


def _fill(file: Path) -> None:
    """Leave no room on a disk."""
    with file.open("ab", buffering=0) as out:
        size = 2**20
        while size:
            try:
                out.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 16


def _restart_s3(site: Site, _: Command, rng: random.Random) -> int:
    site.kill_s3()
    time.sleep(rng.uniform(*_DOWN))
    site.start_s3()
    return 1


def _restart_prefect(site: Site, _: Command, rng: random.Random) -> int:
    site.prefect.kill()
    time.sleep(rng.uniform(*_DOWN))
    site.prefect.start()
    return 1


_MEANS: dict[str, Callable[[Site, Command, random.Random], int]] = {
    WORKER: _kill_worker,
    RUN: _kill_run,
    SLOW: _slow_down,
    CUT: _cut,
    FULL: _fill_scratch,
    S3: _restart_s3,
    PREFECT: _restart_prefect,
}


_PAGE = 200
_QUIET_SECONDS = 3.0  # task runs are recorded behind the run's back


@dataclass(frozen=True, slots=True)
class Redone:
    """Work that was begun more than once.

    A task counts as begun while it waits for a worker, so these are upper bounds; but for what a
    server that was killed had not yet recorded.

    Attributes:
        files: files that were begun more than once.
        attempts: attempts beyond the first, of all files.
        text_bytes: bytes of text of those attempts, as if each had come to its end.
        share: their part of the text of all files.
        unknown: files of which Prefect knows no attempt.
    """

    files: int
    attempts: int
    text_bytes: int
    share: float
    unknown: int


def work_redone(api: str, run_name: str, dataset: Path) -> Redone:
    """Find the work that runs with `run_name` in their names did more than once for a dataset."""
    texts = {}
    for file in (dataset / "parts").iterdir():
        record = record_of(file.read_bytes(), where=str(file))
        texts[record.part] = record.text_bytes
    attempts = _settled(api, run_name)
    again = {part: count - 1 for part, count in attempts.items() if count > 1}
    redone = sum(texts[part] * count for part, count in again.items())
    return Redone(
        files=len(again),
        attempts=sum(again.values()),
        text_bytes=redone,
        share=redone / sum(texts.values()),
        unknown=len(texts.keys() - attempts.keys()),
    )


def _settled(api: str, run_name: str) -> Counter[int]:
    before, now = None, _attempts(api, run_name)
    while before != now:
        time.sleep(_QUIET_SECONDS)
        before, now = now, _attempts(api, run_name)
    return now


def _attempts(api: str, run_name: str) -> Counter[int]:
    """Count the beginnings of the task `tokenize`, by part."""
    attempts: Counter[int] = Counter()
    wanted = {
        "task_runs": {"name": {"like_": "tokenize"}},
        "flow_runs": {"name": {"like_": run_name}},
        "sort": "ID_DESC",
        "limit": _PAGE,
    }
    offset = 0
    while True:
        asked = httpx.post(f"{api}/task_runs/filter", json={**wanted, "offset": offset}, timeout=60)
        found = asked.raise_for_status().json()
        for task in found:
            attempts[int(task["name"].split()[1])] += task["run_count"]
        offset += len(found)
        if len(found) < _PAGE:
            return +attempts


_LOOK_SECONDS = 0.2
_REST = 4.0  # times what a look took
_COMMANDS_A_FAULT = 2


@dataclass(slots=True)
class Passed:
    """One run to its end: seconds, bytes to and from S3, commands, and what befell it."""

    seconds: float = 0.0
    megabytes_up: float = 0.0
    megabytes_down: float = 0.0
    commands: int = 0
    faults: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    struck: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))


def shard(
    site: Site,
    sources: str,
    output: str,
    options: Sequence[object],
    *,
    faults: Sequence[Fault] = (),
    seed: int = 0,
) -> Passed:
    """Give the command until its work is done, with these faults; it may have ended before all."""
    ending = sum(fault.kind in ENDING for fault in faults)
    arguments = ["shard", sources, "--output", output, *options]
    logs = site.folder / f"logs-{Path(output).name}"
    command = Command(arguments, site.environment, logs, 1 + _COMMANDS_A_FAULT * ending)
    waiting, rng, passed = list(faults), random.Random(seed), Passed()
    up, down, began = site.wire.bytes_up, site.wire.bytes_down, time.monotonic()
    command.start()
    try:
        while not command.is_done():
            asked = time.monotonic()
            recorded = site.recorded(Path(output).name) if waiting else 0
            # Listing thousands of records is work for the server too.
            time.sleep(max(_LOOK_SECONDS, _REST * (time.monotonic() - asked)))
            while waiting and recorded >= waiting[0].at:
                kind = waiting.pop(0).kind
                if struck := inflict(kind, site, command, rng):
                    passed.faults[kind] += 1
                    passed.struck[kind] += struck
    finally:
        command.stop()
    passed.seconds = time.monotonic() - began
    passed.megabytes_up = (site.wire.bytes_up - up) / 1e6
    passed.megabytes_down = (site.wire.bytes_down - down) / 1e6
    passed.commands = command.starts
    print(f"{output}: {passed.seconds:.1f} s, {passed.commands} commands", flush=True)
    return passed


def endure(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """The undisturbed runs, the disturbed one, and what it cost; stops where bytes differ."""
    link = args.link and args.link * 1e6
    with open_site(folder, link) as site:
        kinds = [kind for kind in KINDS if site.bounded or kind != FULL]
        size = write_sources(folder / "sources", args.files, args.seed)
        sources = upload(folder / "sources", site.s3.url, BUCKET)
        print(f"{args.files} files, {size / 1e6:.1f} MB", flush=True)
        options = ["--tokenizer", args.tokenizer or common.default_tokenizer()]
        options += ["--pattern", "gpt2", "--holdout-fraction", 0.01, "--sequence-length", 512]
        options += ["--workers", args.workers]
        expected = args.expected or folder / "expected"
        runs: dict[str, Passed] = {}
        if not (expected / MANIFEST).exists():
            runs["undisturbed, to the local disk"] = shard(site, sources, str(expected), options)
        site.calm()
        output = f"s3://{BUCKET}/disturbed"
        faults = draw(args.files, args.rounds, kinds, random.Random(args.seed))
        scratch = ["--scratch", site.scratch]
        runs["disturbed, to S3"] = disturbed = shard(
            site, sources, output, options + scratch, faults=faults, seed=args.seed
        )
        site.calm()
        copy = download_all(site.s3.url, BUCKET, "disturbed", folder / "copy")
        assert_same_dataset(expected, copy)
        print("the same bytes", flush=True)
        redone = work_redone(site.prefect.url, "disturbed", copy)
        print(redone, flush=True)
        if args.compare_time:
            output = f"s3://{BUCKET}/calm"
            runs["undisturbed, to S3"] = shard(site, sources, output, options + scratch)
    print_tables(runs, disturbed, asdict(redone))
    return {
        "files": args.files,
        "source_bytes": size,
        "left_out": [kind for kind in KINDS if kind not in kinds],
        "runs": {name: asdict(run) for name, run in runs.items()},
        "redone": asdict(redone),
    }


def print_tables(runs: dict[str, Passed], disturbed: Passed, redone: dict[str, float]) -> None:
    """Faults by kind; runs beside each other; work redone."""
    rows = [(kind, disturbed.faults[kind], disturbed.struck[kind]) for kind in KINDS]
    total = ("all", sum(disturbed.faults.values()), sum(disturbed.struck.values()))
    print(common.table(("fault", "times", "processes, servers or connections"), [*rows, total]))
    columns = ("run", "seconds", "commands", "MB to S3", "MB from S3")
    shown = [
        (
            name,
            f"{run.seconds:.1f}",
            run.commands,
            f"{run.megabytes_up:.1f}",
            f"{run.megabytes_down:.1f}",
        )
        for name, run in runs.items()
    ]
    print(f"\n{common.table(columns, shown)}")
    print(
        f"\nTokenized again, at most: {redone['attempts']} times, {redone['files']} files, "
        f"{redone['share']:.2%} of the text."
    )


def main() -> None:
    """Read the command line and go through it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--rounds", type=int, default=6, help="of faults, ten each")
    parser.add_argument("--seed", type=int, default=0, help="of sources and faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--link", type=float, help="MB/s to S3 and back; default: unbounded")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument(
        "--expected",
        type=Path,
        help="folder for the undisturbed dataset; kept, and used again",
    )
    parser.add_argument(
        "--compare-time",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run undisturbed to S3 too, for the time",
    )
    parser.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    args = parser.parse_args()
    enter_own_mounts()
    # Whoever stops this ends its servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with tempfile.TemporaryDirectory(prefix="shardmill-endurance-") as name:
        result = endure(args, Path(name))
    common.save(args.result, **result)
    if result["left_out"]:
        print(f"Left out: {result['left_out']}; `unshare` is not allowed here.", file=sys.stderr)


if __name__ == "__main__":
    main()
