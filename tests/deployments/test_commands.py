"""The documented commands for a cluster and a schedule, run as they are on a real server."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from streaming_ext.format.reading import read_manifest
from streaming_ext.store import LocalStorage
from tests.command_line import assert_same_dataset
from tests.servers.prefect.worker import HOSTS, PARENTS, ROOT
from tests.test_readme import blocks, run_script, search_path


@pytest.fixture
def home(tmp_path) -> Iterator[Path]:
    """A home folder; kills the processes that a worker started and that still run at the end."""
    yield tmp_path
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") == str(tmp_path):
                process.kill()


@pytest.fixture
def shell(environment, home, api_url) -> dict[str, str]:
    """The environment of the user's shell, with the server that is already running."""
    for pool in (PARENTS, HOSTS):  # remove those that other tests made in this process
        httpx.delete(f"{api_url}/work_pools/{pool}", timeout=120)
    return {
        **environment,
        "HOME": str(home),
        "PATH": search_path(),
        "PREFECT_API_URL": api_url,
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_WORKER_QUERY_SECONDS": "0.5",
    }


def test_the_documented_cluster_commands(shell, home) -> None:
    (commands,) = blocks("docs/how-to/several-hosts.md", "bash")
    *others, submit = commands.strip().splitlines()
    assert submit.startswith("shardmill submit demo output=")
    others += [
        "cp -r ~/shardmill-demo/dataset ~/shardmill-demo/as-it-was",
        "prefect deployment run annotate-dataset/annotate-demo --watch",
    ]
    script = "\n".join([*others, f"{submit} executor=here"])  # an earlier one took the hosts
    run_script(script, ROOT, shell, home / "output.log")
    demo = home / "shardmill-demo"
    assert "characters" in read_manifest(LocalStorage(demo / "dataset")).columns
    for made in ("of-workers", "submitted"):
        assert_same_dataset(demo / "as-it-was", demo / made)
        report = next((demo / made / "runs").glob("*.json")).read_text()
        assert '"files_done": 6' in report


def test_the_documented_schedule(shell, home) -> None:
    """The last command of docs/how-to/run-on-a-schedule.md removes the schedule."""
    script = "\n".join(blocks("docs/how-to/run-on-a-schedule.md", "bash"))
    log = home / "output.log"
    run_script(script, ROOT, shell, log)
    printed = log.read_text()
    assert "shardmill-demo/dataset is complete; nothing to do." in printed
    assert "cron: 0 3 * * *" in printed
