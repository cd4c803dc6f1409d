"""`shardmill` in a folder that holds the user's own `flows` and `tasks`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import CommandLine, assert_same_dataset

THEIRS = "raise SystemExit('this is not part of shardmill')\n"


@pytest.mark.parametrize(
    ("names", "server"),
    [
        (("flows.py", "tasks.py"), False),  # the embedded API is a child process too
        (("flows/__init__.py", "tasks/__init__.py", "streaming_ext.py"), True),
    ],
)
def test_a_run_in_a_folder_with_flows_and_tasks_of_the_users_own(
    embedded: CommandLine,
    served: CommandLine,
    dataset: Path,
    tmp_path: Path,
    names: tuple[str, ...],
    server: bool,
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(THEIRS)
    command = served if server else embedded
    ended = subprocess.run(
        [
            Path(sys.executable).with_name("shardmill"),
            *map(str, command.shard_arguments("out")),
        ],
        env=command.env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert_same_dataset(dataset, tmp_path / "out")
