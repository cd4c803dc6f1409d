"""Commands run in this process: for wrong usage, and what needs no run."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from flows.cli import main


@dataclass(frozen=True)
class Ended:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Ended]


@pytest.fixture
def shardmill(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Runs a command line in this process, its output in a pipe."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*arguments: object) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Ended(int(ended.value.code or 0), said.out, said.err)

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)
