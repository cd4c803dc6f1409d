"""Real Prefect workers, run like hosts of a cluster, and the requests of tests to the server."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.command_line import CommandLine, processes_below, workers_of
from tests.servers.prefect.server import ask
from tests.warm import WARM, start_module

ROOT = Path(__file__).parents[3]
DEPLOYMENTS = ROOT / "deployments" / "prefect.yaml"
PARENTS, HOSTS = "shardmill", "shardmill-hosts"
ON_HOSTS = "prefect://shard-partition/hosts"
WORK_SECONDS = 240.0
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


@dataclass
class Cluster:
    """A server with the deployments, and hosts that a test starts and kills.

    Attributes:
        api: the URL of the server.
        env: the environment of everything that runs.
        folder: the folder for logs, and for each host's scratch.
        warm: True if workers, and all that they start, are forks of a process that has imported
            Prefect.
        hosts: the running workers by name.
    """

    api: str
    env: Mapping[str, str]
    folder: Path
    warm: bool = WARM
    hosts: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)

    def prefect(self, *arguments: str) -> str:
        """Run a command of Prefect's and return what it prints."""
        with start_module("prefect", arguments, self.env, folder=ROOT) as command:
            stdout, stderr = command.communicate()
        assert command.returncode == 0, stdout + stderr
        return stdout

    def ask(self, path: str, **body: Any) -> Any:
        """Send the server a request, again if it is busy or away, and return the answer."""
        return ask("POST" if body else "GET", f"{self.api}/{path}", **body)

    def start(self, name: str, *, pool: str = HOSTS, prefix: tuple[str, ...] = ()) -> None:
        """Start a host: a worker that takes one run at a time and has its own temporary folder.

        Args:
            name: the name of the worker.
            pool: the work pool that it polls.
            prefix: a command that runs the worker, such as one that enters a namespace.
        """
        scratch = self.folder / name
        scratch.mkdir(exist_ok=True)
        words = ["worker", "start", "--pool", pool, "--name", name, "--limit", "1"]
        env = {**self.env, "TMPDIR": str(scratch)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.hosts[name] = start_module(
                *("prefect", words, env),
                warm=self.warm,
                new_session=True,
                folder=scratch,
                log=log,
                prefix=prefix,
            )

    def start_missing(self, *names: str, pool: str = HOSTS) -> None:
        """Start those of these hosts that are not running."""
        for name in names:
            if name not in self.hosts:
                self.start(name, pool=pool)

    def processes(self, name: str) -> list[psutil.Process]:
        """Return all processes of a host, its worker first."""
        worker = psutil.Process(self.hosts[name].pid)
        return [worker, *processes_below(worker)]

    def work(self) -> list[psutil.Process]:
        """Return all processes of all hosts except their workers."""
        return [process for name in self.hosts for process in self.processes(name)[1:]]

    def frozen(self, count: int = 1) -> list[str]:
        """Wait until so many hosts have worker processes, and suspend these: their work then takes
        as long as a test needs. Return the names of the hosts."""
        deadline = time.monotonic() + WORK_SECONDS
        names: list[str] = []
        while len(names) < count:
            assert time.monotonic() < deadline, f"no work within {WORK_SECONDS} s"
            time.sleep(0.05)
            for name in self.hosts:
                workers = workers_of(self.hosts[name].pid)
                for worker in workers:
                    with suppress(psutil.NoSuchProcess):
                        worker.suspend()
                if workers and name not in names:
                    names.append(name)
        return names

    def thaw(self) -> None:
        """Resume all worker processes."""
        for name in self.hosts:
            for worker in workers_of(self.hosts[name].pid):
                with suppress(psutil.NoSuchProcess):
                    worker.resume()

    def kill(self, name: str) -> None:
        """Kill everything on a host at once with kill -9, as a power cut does."""
        processes = self.processes(name)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()  # so that none sees another one die first
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.hosts.pop(name).wait()

    def kill_worker(self, name: str) -> None:
        """Kill a host's worker with kill -9; the processes that it started stay."""
        worker = self.hosts.pop(name)
        worker.kill()
        worker.wait()

    def stop(self, name: str) -> None:
        """End a host as systemd does: SIGTERM to its worker, then SIGKILL to what is left."""
        processes = self.processes(name)
        worker = self.hosts.pop(name)
        worker.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            worker.wait(20)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        worker.wait()

    def log(self, name: str) -> str:
        """Return what a host printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def shard(self, command: CommandLine, output: Path | str, **options: object) -> str:
        """Have the deployment shard a command's files on hosts; return the id of the flow run.

        The first call starts a host for parent runs.
        """
        self.start_missing("planner", pool=PARENTS)
        config = command.shard_config(output, **{"executor": ON_HOSTS, **options})
        found = self.ask("deployments/name/shard-dataset/demo")
        made = self.ask(
            f"deployments/{found['id']}/create_flow_run",
            parameters={"config": config},
            state={"type": "SCHEDULED"},
        )
        return str(made["id"])

    def flow_run(self, run: str) -> dict[str, Any]:
        """Return a flow run as the server has it."""
        return dict(self.ask(f"flow_runs/{run}"))

    def partitions(self, run: str) -> list[dict[str, Any]]:
        """Return the flow runs of a run's partitions."""
        parent = {"parent_flow_run_id": {"any_": [run]}}
        found = self.ask("flow_runs/filter", flow_runs=parent, sort="START_TIME_ASC")
        return [dict(one) for one in found]

    def wait(self, run: str, *, seconds: float = 300.0) -> dict[str, Any]:
        """Wait until a flow run has ended, and return its state."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.flow_run(run)
            if found["state_type"] in FINAL:
                return dict(found["state"])
            time.sleep(0.3)
        logs = "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.hosts)
        raise AssertionError(f"{found['state']} after {seconds} s\n{logs}")

    def no_work_left(self) -> bool:
        """Return whether no host has a process other than its worker."""
        return all(len(self.processes(name)) == 1 for name in self.hosts)


@contextmanager
def cluster(
    api: str,
    env: Mapping[str, str],
    folder: Path,
    *,
    hosts: Sequence[str] = (),
    warm: bool = WARM,
) -> Iterator[Cluster]:
    """Make the work pools and the deployments on a server; all hosts end with the block.

    Args:
        api: the URL of the server.
        env: the environment of everything that runs.
        folder: the folder for logs, and for each host's scratch.
        hosts: the hosts to start at once.
        warm: see `Cluster`.
    """
    made = Cluster(
        api,
        {
            **env,
            "PREFECT_API_URL": api,
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_LOGGING_LEVEL": os.environ.get("PREFECT_LOGGING_LEVEL", "INFO"),
        },
        folder,
        warm,
    )
    for pool in (PARENTS, HOSTS):
        body = {"name": pool, "type": "process", "base_job_template": {}}
        answer = httpx.post(f"{api}/work_pools/", json=body, timeout=120)
        assert answer.status_code in {201, 409}, answer.text  # 409: another test made it
    if not all(_is_deployed(api, name) for name in ("shard-dataset/demo", "shard-partition/hosts")):
        names = ("-n", "demo", "-n", "hosts")
        made.prefect("--no-prompt", "deploy", *names, "--prefect-file", str(DEPLOYMENTS))
    with ExitStack() as stack:
        stack.callback(lambda: [made.stop(name) for name in list(made.hosts)])
        made.start_missing(*hosts)
        yield made


def _is_deployed(api: str, name: str) -> bool:
    """Return whether another test made the deployment and its work pool still exists."""
    answer = httpx.get(f"{api}/deployments/name/{name}", timeout=120)
    return answer.is_success and answer.json()["work_pool_name"] is not None
