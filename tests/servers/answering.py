"""A server of one process, once it answers."""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

START_SECONDS = 240.0  # it takes some seconds on an idle machine


@contextmanager
def answering(
    command: Sequence[str], url: str, *, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a server for the length of the block, which begins when the server answers.

    Args:
        command: the command that starts the server.
        url: a URL at which it answers, whatever it says.
        log: the file for what it prints.
        env: the environment of the server, by default this process's.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        wait_for_answer(process, url, log)
        yield
    finally:
        process.kill()
        process.wait()


def wait_for_answer(process: "subprocess.Popen[Any]", url: str, log: Path) -> None:
    """Wait until a started process answers, whatever it says."""
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(timeout=5) as client:  # only one: each reads the system's certificates
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            with contextlib.suppress(httpx.TransportError):
                client.get(url)
                return
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.05)
