"""Cold commands: each process is a fresh one, as when a user types them.

Other tests fork their commands from a process that has imported everything, in another order. No
import depends on that order: `tests/test_layering.py` finds every circle.
"""

import sys
from pathlib import Path

from tests.command_line import assert_same_dataset, run_program, succeeded
from tests.servers.prefect.worker import PARENTS, cluster

SHARDMILL = Path(sys.executable).with_name("shardmill")
THEIRS = "raise SystemExit('this is not part of shardmill')\n"


def test_demo_in_a_folder_with_flows_and_tasks_of_the_users_own(embedded, tmp_path) -> None:
    """`PYTHONPATH` puts the user's files and packages first, for all processes of a run."""
    for name in ("flows.py", "tasks/__init__.py", "streaming_ext.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(THEIRS)
    env = {**embedded.env, "PYTHONPATH": "."}
    ended = succeeded(run_program(SHARDMILL, "demo", env=env, folder=tmp_path))
    assert "Training reads" in ended.stdout


def test_a_submitted_run(served, api_url, dataset, tmp_path) -> None:
    config = served.shard_config(tmp_path / "out")
    settings = [f"{name}={value}" for name, value in config.items()]
    with cluster(api_url, served.env, tmp_path, warm=False) as hosts:
        hosts.start("planner", pool=PARENTS)
        command = (SHARDMILL, "submit", "demo", "executor=here", *settings)
        succeeded(run_program(*command, env=served.env, folder=tmp_path))
    assert_same_dataset(dataset, tmp_path / "out")
