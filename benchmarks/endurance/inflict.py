"""Making each kind of fault happen to a run, and taking it away again where a person would."""

import errno
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.endurance import schedule
from benchmarks.endurance.command import Command
from benchmarks.endurance.site import Site
from tests.servers.fault_proxy import Faults

_LOOK_SECONDS = 0.05
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
        time.sleep(_LOOK_SECONDS)
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
        time.sleep(_LOOK_SECONDS)
    struck = site.wire.struck
    site.calm()
    return struck


def _fill_scratch(site: Site, command: Command, _: random.Random) -> int:
    filler = site.scratch / "filler"
    deadline = time.monotonic() + _FULL_SECONDS
    while not command.ended and time.monotonic() < deadline:
        _fill(filler)
        time.sleep(_LOOK_SECONDS)
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
    schedule.WORKER: _kill_worker,
    schedule.RUN: _kill_run,
    schedule.SLOW: _slow_down,
    schedule.CUT: _cut,
    schedule.FULL: _fill_scratch,
    schedule.S3: _restart_s3,
    schedule.PREFECT: _restart_prefect,
}
