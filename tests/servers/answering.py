"""A server of one process, from its first answer on."""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx


@contextmanager
def answering(
    command: Sequence[str],
    url: str,
    *,
    log: Path,
    seconds: float,
    env: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run a server for the length of the block, which begins when it answers.

    Args:
        command: that starts it.
        url: where it answers, whatever it says.
        log: file for what it prints.
        seconds: until it must have answered.
        env: its environment, this process's by default.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + seconds
        with httpx.Client(timeout=2) as client:  # one: each reads the system's certificates
            while True:
                assert process.poll() is None, log.read_text()
                with contextlib.suppress(httpx.TransportError):
                    client.get(url)
                    break
                assert time.monotonic() < deadline, f"{url} does not answer"
                time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()
