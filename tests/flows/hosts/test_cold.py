"""Commands cold: as a user types them, each process a fresh one.

Other tests fork their commands from a process that has imported everything, in another order. That
order matters to no import: `tests/test_layering.py` finds every circle.
"""

import subprocess
import sys
from pathlib import Path

from tests.command_line import CommandLine, assert_same_dataset
from tests.servers.prefect.worker import ON_HOSTS, PARENTS, cluster

SHARDMILL = Path(sys.executable).with_name("shardmill")
THEIRS = "raise SystemExit('this is not part of shardmill')\n"


def cold(command: CommandLine, folder: Path, *arguments: object, **env: str) -> str:
    """Run `shardmill` in a folder; returns what it printed."""
    ended = subprocess.run(
        [SHARDMILL, *map(str, arguments)],
        env={**command.env, **env},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_demo_in_a_folder_with_flows_and_tasks_of_the_users_own(
    embedded: CommandLine, tmp_path: Path
) -> None:
    """As files and as packages, which `PYTHONPATH` puts first, for all processes of a run."""
    for name in ("flows.py", "tasks/__init__.py", "streaming_ext.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(THEIRS)
    assert "Training reads" in cold(embedded, tmp_path, "demo", PYTHONPATH=".")


def test_submit_and_the_executor_prefect(
    served: CommandLine, api_url: str, dataset: Path, tmp_path: Path
) -> None:
    config = served.shard_config(tmp_path / "out", executor=ON_HOSTS, partitions=1)
    settings = [f"{name}={value}" for name, value in config.items() if name != "sources"]
    with cluster(api_url, served.env, tmp_path, warm=False) as hosts:
        hosts.start("planner", pool=PARENTS)
        hosts.start("one")
        cold(served, tmp_path, "submit", "demo", f"sources={served.sources}", *settings)
    assert_same_dataset(dataset, tmp_path / "out")
