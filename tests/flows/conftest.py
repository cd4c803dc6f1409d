"""Commands run in this process, and sources that take long enough for a run to be stopped."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.cli import main
from tasks.core.config import ShardConfig
from tasks.core.synthetic import write_parquet_files
from tests.command_line import CommandLine, Ended
from tests.servers import shared
from tests.tasks.core.build_dataset import build_as

Command = Callable[..., Ended]


def undisturbed_by(command: CommandLine, output: Path | str, **options: object) -> Path:
    """Make what a command's `shard` makes undisturbed, in this process and without Prefect."""
    return build_as(ShardConfig.model_validate(command.shard_config(output, **options)))


@pytest.fixture
def shardmill(capsys) -> Iterator[Command]:
    """Runs a command line in this process, with its output in a pipe.

    It is meant for wrong usage and for commands without a run: neither loads Prefect.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    environment = dict(os.environ)  # commands set variables for Prefect

    def run(*arguments: object) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Ended(arguments, int(ended.value.code or 0), said.out, said.err)

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture(scope="session")
def slow(served) -> CommandLine:
    """The command line on sources that keep the reference engine busy for some seconds."""
    folder = shared.folder("slow sources", lambda made: write_parquet_files(made, 4, 900, seed=3))
    return replace(served, sources=folder, shard_size="256KiB", workers=2)


@pytest.fixture(scope="session")
def undisturbed(slow) -> Path:
    """The dataset of the slow sources, made undisturbed."""
    return shared.folder("undisturbed", lambda made: undisturbed_by(slow, made / "out")) / "out"


SHUFFLE = {"shuffle": "documents", "shuffle_seed": 3}


@pytest.fixture(scope="session")
def shuffled(served) -> Path:
    """The dataset of the session's small files, shuffled, made undisturbed."""

    def make(folder: Path) -> None:
        undisturbed_by(served, folder / "out", **SHUFFLE)

    return shared.folder("shuffled", make) / "out"
