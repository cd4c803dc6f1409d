"""`shardmill` in a folder that holds the user's own `flows` and `tasks`."""

import subprocess
import sys
from pathlib import Path

from tests.command_line import CommandLine, assert_same_dataset

THEIRS = "raise SystemExit('this is not part of shardmill')\n"


def test_a_run_in_a_folder_with_flows_and_tasks_of_the_users_own(
    embedded: CommandLine, dataset: Path, tmp_path: Path
) -> None:
    """As files and as packages, which `PYTHONPATH` puts first, for all processes of a run."""
    for name in ("flows.py", "tasks/__init__.py", "streaming_ext.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(THEIRS)
    ended = subprocess.run(
        [
            Path(sys.executable).with_name("shardmill"),
            *map(str, embedded.shard_arguments("out")),
        ],
        env={**embedded.env, "PYTHONPATH": "."},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert_same_dataset(dataset, tmp_path / "out")
