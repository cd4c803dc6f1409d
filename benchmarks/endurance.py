"""A small FineWeb-Edu, sharded to S3 while everything around the run fails: nothing is lost.

The command `shardmill shard` reads 2,410 files from a real S3 server and writes to it, with a real
Prefect server, while random faults strike. Whenever the command ends before its work is done, it is
given again. The result must be, byte for byte, the dataset that an undisturbed run makes on the
local disk. A round is ten faults; `--link` limits S3 to a number of MB/s.
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import common
from benchmarks.common import CACHE
from tasks.core.synthetic import make_documents
from tests.command_line import assert_same_dataset, workers_of
from tests.conftest import clean_environment
from tests.servers import shared
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
OFTEN = (WORKER, SLOW, CUT)  # twice per round: they cost little
ENDING = (RUN, FULL, S3, PREFECT)  # after these, the command may have to be given again
_SPAN = (0.02, 0.9)  # fractions of the files
_LAST = 12  # files that no fault waits for: they are done together, and end nearly at once


def draw(
    files: int, rounds: int, kinds: Sequence[str], rng: random.Random
) -> list[tuple[int, str]]:
    """Draw faults: for each, the number of recorded files at which it strikes, ascending."""
    drawn = [*kinds, *OFTEN] * rounds
    first, last = (files * part for part in _SPAN)
    last = max(first, min(last, files - _LAST))
    return sorted((int(rng.uniform(first, last)), kind) for kind in drawn)


_DUMP_FILES = 26  # per dump; FineWeb-Edu has 95 dumps
_DOCUMENTS = (1, 60)  # per file, evenly spread over orders of magnitude
_POOL = 2000  # documents from which files are drawn
_THREADS = 8


def write_sources(folder: Path, files: int, seed: int) -> int:
    """Write the files, which depend on the arguments alone; return their size in bytes."""
    rng = random.Random(seed)
    pool = make_documents(_POOL, seed)
    for number in range(files):
        dump, file = divmod(number, _DUMP_FILES)
        path = folder / f"data/CC-MAIN-{dump:02}/train-{file:05}-of-{_DUMP_FILES:05}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = rng.choices(pool, k=round(exp(rng.uniform(*map(log, _DOCUMENTS)))))
        table = {"text": texts, "score": [rng.uniform(2.5, 5) for _ in texts]}
        pq.write_table(pa.table(table), path, compression="zstd")
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def upload(folder: Path, client: Any) -> str:
    """Put the files into the bucket; return the pattern that names them there."""

    def put(file: Path) -> None:
        key = f"fineweb-edu/{file.relative_to(folder).as_posix()}"
        client.put_object(Bucket=BUCKET, Key=key, Body=file.read_bytes())

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(put, folder.rglob("*.parquet")))
    return f"s3://{BUCKET}/fineweb-edu/data/*/*.parquet"


_GOES_ON = {1, -signal.SIGKILL}  # it failed with a message, or was killed here
_TAIL = 4000


class Command:
    """The command `shardmill shard`, whose processes have their own group.

    Args:
        words: the arguments of the command.
        environment: the environment of its processes.
        log: the file of its output, which each start overwrites.
        most: the largest number of starts that is not an error.
    """

    def __init__(
        self, words: Sequence[object], environment: Mapping[str, str], log: Path, most: int
    ) -> None:
        self._words = [sys.executable, "-P", "-m", "flows.cli", *map(str, words)]
        self._environment, self._log, self._most = environment, log, most
        self.starts = 0
        self.start()

    def start(self) -> None:
        """Start the command."""
        assert self.starts < self._most, f"not done by {self._most} commands: {self.said()}"
        self.starts += 1
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                self._words, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def said(self) -> str:
        """Return the end of what the last command printed."""
        return self._log.read_text()[-_TAIL:]

    def is_done(self) -> bool:
        """Return True if the work is done; start the command again if it ended before that.

        Raises:
            AssertionError: it ended in a way that no fault explains.
        """
        code = self.process.poll()
        if code is None:
            return False
        assert "Traceback" not in self._log.read_text(), self.said()
        if code == 0:
            return True
        assert code in _GOES_ON, f"exit code {code}: {self.said()}"
        self.start()
        return False

    def kill(self, *, alone: bool) -> None:
        """Kill the process with SIGKILL, and its workers too unless `alone`."""
        (os.kill if alone else os.killpg)(self.process.pid, signal.SIGKILL)
        self.process.wait()


BUCKET = "endurance"  # always the same, as records hold the names of sources
_SCRATCH_SIZE = "64m"
_OWN_MOUNTS = "SHARDMILL_BENCH_OWN_MOUNTS"


@dataclass(frozen=True, slots=True)
class Site:
    """The servers, and the folders of the run.

    Attributes:
        client: the client of S3, which bypasses the proxy.
        link: the rate to and from S3, in bytes per second; None for no limit.
        scratch: the scratch folder of the disturbed run, on its own small disk if `bounded`.
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
            "XDG_CACHE_HOME": str(CACHE / "cache"),  # the tokenizer's cached files
            **aws_environment(self.wire.url),
            "PREFECT_API_URL": self.prefect.url,
        }

    def calm(self) -> None:
        """Remove all faults from the wire."""
        self.wire.inflict(Faults(bytes_per_second=self.link))

    def recorded(self, output: str) -> int:
        """Count the recorded files below a prefix of the bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=f"{output}/parts/"
        )
        return sum(page["KeyCount"] for page in pages)


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
        if bounded:  # unmounted with the namespace, however this process ends
            size = f"size={_SCRATCH_SIZE}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", scratch], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", scratch], check=True)
        client = s3_client(s3.url)
        stack.callback(client.close)
        client.create_bucket(Bucket=BUCKET)
        yield Site(s3, wire, prefect, client, folder, scratch, bounded, link)


def enter_own_mounts() -> None:
    """Continue in an own mount namespace, in which a small disk can be mounted.

    If the system does not allow that, nothing happens, and no disk will be filled.
    """
    command = ["unshare", "--mount", "--map-root-user"]
    if _OWN_MOUNTS in os.environ or shutil.which(command[0]) is None:
        return
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        return
    script = [sys.executable, "-m", "benchmarks.endurance", *sys.argv[1:]]
    os.execvpe(command[0], [*command, *script], {**os.environ, _OWN_MOUNTS: "1"})  # noqa: S606


_STRIKE_LOOK_SECONDS = 0.05
_STRIKE_SECONDS = 10.0  # to wait for connections that meet the fault
_FULL_SECONDS = 30.0  # for which a disk stays full, unless the run ends before
_DOWN = (0.2, 3.0)  # seconds for which a server is down, without its start
_SLOW_TIMES, _CUT_TIMES = (2, 8), (1, 4)  # connections that meet a fault of the wire
_CUT_UP, _CUT_DOWN = (100, 60_000), (0.0, 5.0)  # in bytes; in powers of ten


def _kill_worker(_: Site, command: Command, rng: random.Random) -> bool:
    while not command.is_done():
        if workers := workers_of(command.process.pid):
            with suppress(psutil.NoSuchProcess):  # it ended with its run
                rng.choice(workers).kill()
                return True
        time.sleep(_STRIKE_LOOK_SECONDS)
    return False


def _kill_run(_: Site, command: Command, rng: random.Random) -> bool:
    if command.is_done():
        return False
    command.kill(alone=rng.random() < 0.5)
    return True


def _slow_down(site: Site, command: Command, rng: random.Random) -> bool:
    faults = Faults(answer=(503, "SlowDown"), times=rng.randint(*_SLOW_TIMES))
    return _on_the_wire(site, command, faults)


def _cut(site: Site, command: Command, rng: random.Random) -> bool:
    times = rng.randint(*_CUT_TIMES)
    if rng.random() < 0.5:
        faults = Faults(cut_up=rng.randint(*_CUT_UP), times=times)
    else:
        faults = Faults(cut_down=int(10 ** rng.uniform(*_CUT_DOWN)), times=times)
    return _on_the_wire(site, command, faults)


def _on_the_wire(site: Site, command: Command, faults: Faults) -> bool:
    site.wire.inflict(faults)
    deadline = time.monotonic() + _STRIKE_SECONDS
    while site.wire.struck < (faults.times or 1) and time.monotonic() < deadline:
        if command.is_done():
            break
        time.sleep(_STRIKE_LOOK_SECONDS)
    struck = site.wire.struck
    site.calm()
    return struck > 0


def _fill_scratch(site: Site, command: Command, _: random.Random) -> bool:
    filler = site.scratch / "filler"
    deadline = time.monotonic() + _FULL_SECONDS
    while command.process.poll() is None and time.monotonic() < deadline:
        _fill(filler)
        time.sleep(_STRIKE_LOOK_SECONDS)
    filler.unlink(missing_ok=True)
    return not command.is_done()


def _fill(file: Path) -> None:
    """Fill a disk."""
    with file.open("ab", buffering=0) as out:
        size = 2**20
        while size:
            try:
                out.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 16


def _restart_s3(site: Site, _: Command, rng: random.Random) -> bool:
    for kind in reversed(DAEMONS):  # first the one that answers clients
        site.s3.kill(kind)
    time.sleep(rng.uniform(*_DOWN))
    for kind in DAEMONS:
        site.s3.start(kind)
    return True


def _restart_prefect(site: Site, _: Command, rng: random.Random) -> bool:
    site.prefect.kill()
    time.sleep(rng.uniform(*_DOWN))
    site.prefect.start()
    return True


_MEANS: dict[str, Callable[[Site, Command, random.Random], bool]] = {
    WORKER: _kill_worker,
    RUN: _kill_run,
    SLOW: _slow_down,
    CUT: _cut,
    FULL: _fill_scratch,
    S3: _restart_s3,
    PREFECT: _restart_prefect,
}


_PAGE = 200
_QUIET_SECONDS = 3.0  # Prefect records task runs with a delay


def work_redone(api: str, run_name: str, dataset: Path) -> dict[str, int]:
    """Count the work on a dataset that runs with `run_name` in their names did more than once.

    A task counts as started while it waits for a worker, so the counts are upper bounds, except for
    attempts that a killed server had not yet recorded. For "unknown" files it has no attempt.
    """
    files = {int(file.stem) for file in (dataset / "parts").iterdir()}
    attempts = _settled(api, run_name)
    again = {part: count - 1 for part, count in attempts.items() if count > 1}
    return {
        "files": len(again),
        "attempts": sum(again.values()),
        "unknown": len(files - attempts.keys()),
    }


def _settled(api: str, run_name: str) -> Counter[int]:
    before, now = None, _attempts(api, run_name)
    while before != now:
        time.sleep(_QUIET_SECONDS)
        before, now = now, _attempts(api, run_name)
    return now


def _attempts(api: str, run_name: str) -> Counter[int]:
    """Count the starts of the task `tokenize`, by part."""
    attempts: Counter[int] = Counter()
    wanted = {
        "task_runs": {"name": {"like_": "tokenize"}},
        "flow_runs": {"name": {"like_": run_name}},
        "sort": "ID_DESC",
        "limit": _PAGE,
        "offset": 0,
    }
    while True:
        asked = httpx.post(f"{api}/task_runs/filter", json=wanted, timeout=60)
        found = asked.raise_for_status().json()
        for task in found:
            attempts[int(task["name"].split()[1])] += task["run_count"]
        if len(found) < _PAGE:
            return +attempts
        wanted["offset"] += _PAGE


_LOOK_SECONDS = 0.2
_REST = 4.0  # pause, as a multiple of the time that a look took
_COMMANDS_A_FAULT = 2


def shard(
    site: Site,
    sources: str,
    output: str,
    options: Sequence[object],
    *,
    faults: Sequence[tuple[int, str]] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """Give the command until its work is done, while faults strike; it may end before all did."""
    most = 1 + _COMMANDS_A_FAULT * sum(kind in ENDING for _, kind in faults)
    words = ["shard", sources, "--output", output, *options]
    waiting, rng, struck = list(faults), random.Random(seed), Counter[str]()
    began = time.monotonic()
    command = Command(words, site.environment, site.folder / "log", most)
    try:
        while not command.is_done():
            asked = time.monotonic()
            recorded = site.recorded(Path(output).name) if waiting else 0
            # Listing thousands of records loads the server too.
            time.sleep(max(_LOOK_SECONDS, _REST * (time.monotonic() - asked)))
            while waiting and recorded >= waiting[0][0]:
                _, kind = waiting.pop(0)
                struck[kind] += _MEANS[kind](site, command, rng)
                print(f"  {recorded:5} files: {kind}", flush=True)
    finally:
        if command.process.poll() is None:
            command.kill(alone=False)
    seconds = time.monotonic() - began
    print(f"{output}: {seconds:.1f} s, {command.starts} commands", flush=True)
    return {"seconds": seconds, "commands": command.starts, "faults": struck}


def endure(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Do the undisturbed run and the disturbed one, compare their bytes, and return the figures."""
    with open_site(folder, args.link * 1e6 or None) as site:
        kinds = [kind for kind in KINDS if site.bounded or kind != FULL]
        size = write_sources(folder / "sources", args.files, args.seed)
        sources = upload(folder / "sources", site.client)
        print(f"{args.files} files, {size / 1e6:.1f} MB", flush=True)
        options = ["--tokenizer", common.default_tokenizer(), "--pattern", "gpt2"]
        options += ["--holdout-fraction", 0.01, "--sequence-length", 512]
        expected = folder / "expected"
        calm = shard(site, sources, str(expected), options)
        site.calm()
        faults = draw(args.files, args.rounds, kinds, random.Random(args.seed))
        options += ["--scratch", site.scratch]
        output = f"s3://{BUCKET}/disturbed"
        disturbed = shard(site, sources, output, options, faults=faults, seed=args.seed)
        site.calm()
        copy = download_all(site.s3.url, BUCKET, "disturbed", folder / "copy")
        assert_same_dataset(expected, copy)
        redone = work_redone(site.prefect.url, "disturbed", copy)
    print(f"the same bytes after {disturbed['faults'].total()} faults; redone: {redone}")
    left_out = [kind for kind in KINDS if kind not in kinds]
    if left_out:
        print(f"Left out: {left_out}; `unshare` is not allowed here.", file=sys.stderr)
    return {"undisturbed": calm, "disturbed": disturbed, "redone": redone, "left_out": left_out}


def main() -> None:
    """Read the command line, and do both runs."""
    parser = common.parser(__doc__, files=2410, rounds=6, seed=0, link=0.0)
    args = parser.parse_args()
    enter_own_mounts()
    # `SystemExit` ends the servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with tempfile.TemporaryDirectory(prefix="shardmill-endurance-") as name:
        os.environ.setdefault(shared.VARIABLE, name)
        common.save(args.result, **endure(args, Path(name)))


if __name__ == "__main__":
    main()
