"""Sources that take long enough to be stopped half way."""

from dataclasses import replace
from pathlib import Path

import pytest

from tasks.core.synthetic import write_parquet_files
from tests.command_line import CommandLine


@pytest.fixture(scope="session")
def slow(served: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """The command line on sources of some seconds' work for the reference engine."""
    folder = tmp_path_factory.mktemp("slow_sources")
    write_parquet_files(folder, 4, 900, seed=3)
    return replace(served, sources=folder, shard_size="256KiB")


@pytest.fixture(scope="session")
def undisturbed(slow: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the slow sources become when nothing happens, in a process that is not a fork."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    ended = replace(slow, warm=False).shard(output)
    assert ended.returncode == 0, ended.stderr
    return output
