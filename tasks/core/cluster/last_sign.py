"""A process that tells the parent run of a partition whose own process was killed.

Prefect's worker kills (SIGKILL) what it started, also when it is itself stopped in order, and so
does a system without memory. Nobody would tell of it, and the parent run would wait for a silence.
This process waits for the end of the one that started it, and then marks its last sign of life.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from streaming_ext.own_module import start_module
from tasks.core.storage import Storage, open_storage


@contextmanager
def told_if_killed(storage: Storage, path: str) -> Iterator[None]:
    """Have the sign of life at `path` say that it was stopped, should this process be killed."""
    with start_module(
        *("tasks.core.cluster.last_sign", str(storage), path),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl+C is not for it
    ) as process:
        try:
            yield
        finally:
            process.kill()  # this one lives, and tells itself


def mark_stopped(storage: Storage, path: str) -> None:
    """Put the last sign of life again, as one of work that was stopped; what has ended stays."""
    try:
        sign = json.loads(storage.read(path))
    except FileNotFoundError:  # the run is over
        return
    if not sign["ended"] and not sign["stopped"]:
        marked = {**sign, "beat": sign["beat"] + 1, "stopped": True}
        storage.put(path, json.dumps(marked).encode())


def main(output: str, path: str) -> None:
    """Wait for the end of the process that holds the other end of this one's standard input."""
    for name in (signal.SIGTERM, signal.SIGHUP):  # systemd sends them to all processes of a unit
        signal.signal(name, signal.SIG_IGN)
    sys.stdin.buffer.read()
    mark_stopped(open_storage(output), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
