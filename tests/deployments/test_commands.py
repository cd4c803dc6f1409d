"""The README's commands for a cluster, as they stand there, against a real server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.command_line import assert_same_dataset
from tests.servers import shared
from tests.servers.prefect.server import start_prefect_server
from tests.servers.prefect.worker import ROOT
from tests.test_readme import blocks


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home folder; whatever still runs there in the end is killed."""
    yield tmp_path
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") == str(tmp_path):
                process.kill()


@pytest.fixture
def shell(environment: dict[str, str], home: Path) -> dict[str, str]:
    """The user's shell, after the server was started as the README shows."""
    # One of its own: on that of all tests others have the same work pools, at the same time.
    api_url = shared.server("prefect of the README", start_prefect_server)
    return {
        **environment,
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PREFECT_API_URL": api_url,
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_WORKER_QUERY_SECONDS": "2",
    }


def test_the_readme_s_cluster_commands(shell: dict[str, str], home: Path) -> None:
    (commands,) = [block for block in blocks("README.md", "bash") if "work-pool" in block]
    log = home / "output.log"  # no pipe: the workers in the background would keep it open
    with log.open("wb") as out:
        ended = subprocess.run(
            ["bash", "-c", f"set -euxo pipefail\n{commands}"],
            cwd=ROOT,
            env=shell,
            stdout=out,
            stderr=out,
            timeout=540,
            check=False,
        )
    assert ended.returncode == 0, log.read_text()
    demo = home / "shardmill-demo"
    for made in ("of-workers", "submitted"):
        assert_same_dataset(demo / "dataset", demo / made)
        report = next((demo / made / "runs").glob("*.json")).read_text()
        assert '"files_done": 6' in report
