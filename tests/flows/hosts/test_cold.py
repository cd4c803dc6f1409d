"""Every command and every executor once, cold: as a user types it, each process a fresh one.

Other tests fork their commands from a process that has imported everything, in another order.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.commands.app import app
from tests.command_line import CommandLine, assert_same_dataset
from tests.servers.prefect.server import free_port
from tests.servers.prefect.worker import ON_HOSTS, PARENTS, cluster
from tests.tasks.core.extending.extended import write_source

Cold = Callable[..., str]
SHARDMILL = Path(sys.executable).with_name("shardmill")
TESTED_HERE = ("demo", "shard", "submit", "extend", "copy", "merge", "subset", "export", "import",
               "plan", "inspect", "verify", "trace")  # fmt: skip


@pytest.fixture
def cold(served: CommandLine, tmp_path: Path) -> Cold:
    """Runs `shardmill` in the test's folder with a server; returns what it printed."""

    def run(*arguments: object, **env: str) -> str:
        ended = subprocess.run(
            [SHARDMILL, *map(str, arguments)],
            env={**served.env, **env},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run


def test_every_command_is_tested_here() -> None:
    assert {name for name in app if not name.startswith("-")} == set(TESTED_HERE)


def test_demo_and_the_executor_here(cold: Cold) -> None:
    """Without a server."""
    assert "Training reads" in cold("demo", PREFECT_API_URL="")


def test_commands_that_only_read(cold: Cold, served: CommandLine, dataset: Path) -> None:
    assert "source files" in cold("plan", served.sources, "--tokenizer", served.tokenizer,
                           "--pattern", "gpt2")  # fmt: skip
    assert "tokens" in cold("inspect", dataset)
    assert "sound" in cold("verify", dataset)
    assert "rank 0" in cold("trace", dataset, "--step", 0, "--batch-size", 2)


def test_commands_that_make_an_output(
    cold: Cold, served: CommandLine, dataset: Path, tmp_path: Path
) -> None:
    write_source(tmp_path / "new.parquet", ["A document that came later."] * 9)
    cold("copy", dataset, "copy")
    assert_same_dataset(dataset, tmp_path / "copy")
    cold("extend", "copy", "new.parquet", "--workers", 1)
    cold("merge", dataset, "copy", "--output", "merged", "--repeats")
    cold("subset", "merged", "--output", "subset", "--documents", 100)
    cold("export", "megatron", "subset", "--output", "export")
    cold(
        *("import", "megatron", "export/train", "--output", "import"),
        *("--tokenizer", served.tokenizer, "--pattern", "gpt2"),
    )


def test_the_executor_dask(cold: Cold, served: CommandLine, dataset: Path, tmp_path: Path) -> None:
    """Its one process is scheduler and worker."""
    address = f"127.0.0.1:{free_port()}"
    host, port = address.split(":")
    program = (
        "from distributed import LocalCluster\n"
        f"with LocalCluster(host={host!r}, scheduler_port={port}, n_workers=1, processes=False,"
        " threads_per_worker=1, dashboard_address=None): input()"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], env=served.env, cwd=tmp_path, stdin=subprocess.PIPE
    ) as scheduler:
        cold(*served.shard_arguments("out", executor=f"dask://{address}"))
        scheduler.communicate(b"\n")
    assert_same_dataset(dataset, tmp_path / "out")


def test_submit_and_the_executor_prefect(
    cold: Cold, served: CommandLine, api_url: str, dataset: Path, tmp_path: Path
) -> None:
    config = served.shard_config(tmp_path / "out", executor=ON_HOSTS, partitions=1)
    settings = [f"{name}={value}" for name, value in config.items() if name != "sources"]
    with cluster(api_url, served.env, tmp_path, warm=False) as hosts:
        hosts.start("planner", pool=PARENTS)
        hosts.start("one")
        cold("submit", "demo", f"sources={served.sources}", *settings)
    assert_same_dataset(dataset, tmp_path / "out")
