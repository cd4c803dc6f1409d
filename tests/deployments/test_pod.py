"""A pod of deployments/kubernetes.yaml, as far as possible without Kubernetes: its command with a
disk that is read-only except for its volumes, its probes, and its end."""

import signal

import httpx
import pytest

from tests.command_line import assert_same_dataset, succeeded
from tests.deployments.test_files import PODS
from tests.servers.namespaces import CAN_HIDE, read_only_but
from tests.servers.prefect.server import free_port
from tests.servers.prefect.worker import ON_HOSTS, cluster
from tests.warm import start_module

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not CAN_HIDE, reason="no disk can be made read-only here (unshare)"),
]


def test_a_pod_works_answers_and_ends(api_url, served, dataset, tmp_path) -> None:
    (pod,) = [
        each["spec"]["template"]["spec"]
        for each in PODS
        if each["metadata"]["name"] == "shardmill-hosts"
    ]
    (container,) = pod["containers"]
    volumes = {mount["mountPath"]: tmp_path / mount["name"] for mount in container["volumeMounts"]}
    for folder in (tmp_path / "out", *volumes.values()):
        folder.mkdir()
    port = free_port()
    env = {
        **served.env,
        "TMPDIR": str(volumes["/tmp"]),  # noqa: S108
        "HOME": str(volumes["/home/shardmill"]),
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
        "PREFECT_WORKER_WEBSERVER_PORT": str(port),
    }
    del env["PREFECT_HOME"], env["XDG_CACHE_HOME"]  # Prefect then uses folders below HOME
    hosts = tmp_path / "hosts"
    hosts.mkdir()
    with cluster(api_url, served.env, hosts) as others, (hosts / "pod.log").open("wb") as log:
        others.hosts["pod"] = start_module(
            *("prefect", ["worker", "start", "--pool", *container["args"]], env),
            new_session=True,
            folder=volumes["/home/shardmill"],
            log=log,
            prefix=read_only_but(tmp_path / "out", *volumes.values()),
        )
        succeeded(served.shard(tmp_path / "out", executor=ON_HOSTS, partitions=1))
        for probe in ("readinessProbe", "livenessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["port"] == 8080  # the default port of Prefect's worker
            assert httpx.get(f"http://127.0.0.1:{port}{asked['path']}").status_code == 200
        worker = others.hosts.pop("pod")
        worker.send_signal(signal.SIGTERM)
        worker.wait(pod["terminationGracePeriodSeconds"])
    assert_same_dataset(dataset, tmp_path / "out")
