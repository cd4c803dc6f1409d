"""Real Prefect workers, as a host of a cluster runs them, and what a test asks the server."""

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
        api: URL of the server.
        env: of everything that runs.
        folder: for logs, and for each host's scratch.
        warm: whether workers, and all that they start, are forks of a process that has imported
            Prefect.
    """

    api: str
    env: Mapping[str, str]
    folder: Path
    warm: bool = WARM
    hosts: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)

    def prefect(self, *arguments: str) -> str:
        """Run a command of Prefect's; returns what it said."""
        with start_module("prefect", arguments, self.env, folder=ROOT) as command:
            stdout, stderr = command.communicate()
        assert command.returncode == 0, stdout + stderr
        return stdout

    def ask(self, path: str, **body: Any) -> Any:
        """A question to the server, asked again where it is busy or away."""
        return ask("POST" if body else "GET", f"{self.api}/{path}", **body)

    def start(self, name: str, *, pool: str = HOSTS, prefix: tuple[str, ...] = ()) -> None:
        """Start a host: a worker that takes one run at a time, with a temporary folder of its own.

        Args:
            name: of the worker.
            pool: that it polls.
            prefix: command that the worker runs below, such as one that enters a namespace.
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
        """Start those of these hosts that do not run."""
        for name in names:
            if name not in self.hosts:
                self.start(name, pool=pool)

    def processes(self, name: str) -> list[psutil.Process]:
        """All processes of a host, its worker first."""
        worker = psutil.Process(self.hosts[name].pid)
        return [worker, *processes_below(worker)]

    def work(self) -> list[psutil.Process]:
        """All processes of all hosts but their workers."""
        return [process for name in self.hosts for process in self.processes(name)[1:]]

    def frozen(self, count: int = 1) -> list[str]:
        """Wait until so many hosts have worker processes and stop these where they are: their work
        takes as long as a test needs. Returns the names of the hosts."""
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
        """Have all worker processes go on."""
        for name in self.hosts:
            for worker in workers_of(self.hosts[name].pid):
                with suppress(psutil.NoSuchProcess):
                    worker.resume()

    def kill(self, name: str) -> None:
        """kill -9 everything on a host at once, as a power cut does."""
        processes = self.processes(name)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()  # nobody sees another die first
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.hosts.pop(name).wait()

    def kill_worker(self, name: str) -> None:
        """kill -9 a host's worker; what it had started stays."""
        worker = self.hosts.pop(name)
        worker.kill()
        worker.wait()

    def stop(self, name: str) -> None:
        """End a host as systemd does: SIGTERM to its worker, then to whatever is left."""
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
        """What a host said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def shard(self, command: CommandLine, output: Path | str, **options: object) -> str:
        """Have the deployment shard a command's files on hosts; returns the id of the flow run.

        The first one starts a host for parent runs.
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
        """A flow run as the server knows it."""
        return dict(self.ask(f"flow_runs/{run}"))

    def partitions(self, run: str) -> list[dict[str, Any]]:
        """The flow runs of a run's partitions."""
        parent = {"parent_flow_run_id": {"any_": [run]}}
        found = self.ask("flow_runs/filter", flow_runs=parent, sort="START_TIME_ASC")
        return [dict(one) for one in found]

    def wait(self, run: str, *, seconds: float = 300.0) -> dict[str, Any]:
        """Wait until a flow run has ended; returns its state."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.flow_run(run)
            if found["state_type"] in FINAL:
                return dict(found["state"])
            time.sleep(0.3)
        logs = "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.hosts)
        raise AssertionError(f"{found['state']} after {seconds} s\n{logs}")

    def no_work_left(self) -> bool:
        """Whether no host has a process beside its worker."""
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
        api: URL of the server.
        env: of everything that runs.
        folder: for logs, and for each host's scratch.
        hosts: to start at once.
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
    """Whether another test made the deployment, and its work pool is still there."""
    answer = httpx.get(f"{api}/deployments/name/{name}", timeout=120)
    return answer.is_success and answer.json()["work_pool_name"] is not None
