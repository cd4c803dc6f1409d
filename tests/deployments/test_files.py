"""The files of `deployments/`, checked with the tools that use them."""

import importlib
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow

from flows import datasets
from flows.build_flow import require_absolute
from streaming_ext.base.errors import UsageError
from tasks.core.config import ShardConfig
from tests.command_line import run_program, succeeded
from tests.servers.prefect.worker import HOSTS, PARENTS, ROOT

FOLDER = ROOT / "deployments"
UNIT = FOLDER / "shardmill-worker@.service"
IMAGE = (FOLDER / "Dockerfile").read_text()
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "prefect.yaml").read_text())[
    "deployments"
]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_a_deployment_names_a_flow_and_what_it_takes(deployment) -> None:
    module, _, name = deployment["entrypoint"].rpartition(".")
    flow = getattr(importlib.import_module(module), name)
    assert deployment["schedules"] == []
    assert deployment["description"]
    if flow.name == "shard-partition":
        assert deployment["work_pool"]["name"] == HOSTS
        return
    assert deployment["work_pool"]["name"] == PARENTS
    config = flow.validate_parameters(deployment["parameters"])["config"]
    if flow.name != "shard-dataset":
        return
    names = {f"prefect://shard-partition/{other['name']}" for other in DEPLOYMENTS}
    assert config.executor in {"here", *names}


def test_each_flow_is_deployed() -> None:
    names = set()
    for deployment in DEPLOYMENTS:
        module, _, name = deployment["entrypoint"].rpartition(".")
        names.add(getattr(importlib.import_module(module), name).name)
    assert names == {
        "shard-dataset",
        "shard-partition",
        "extend-dataset",
        "export-dataset",
        "import-dataset",
        "copy-dataset",
        "merge-datasets",
        "subset-dataset",
        "annotate-dataset",
    }
    flows = [each for each in vars(datasets).values() if isinstance(each, Flow)]
    assert {flow.name for flow in flows} == names - {"shard-partition"}


def test_a_run_of_all_of_fineweb_says_that_it_needs_an_output(
    monkeypatch,
) -> None:
    """Each host would write to a different folder of its own."""
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "some deployment")
    (fineweb,) = [one for one in DEPLOYMENTS if one["name"] == "shard-fineweb"]
    config = ShardConfig.model_validate(fineweb["parameters"]["config"])
    with pytest.raises(UsageError, match="give it with -p output=URL"):
        require_absolute(config.output)
    require_absolute("s3://bucket/text")


def test_the_unit_is_one_that_systemd_takes(tmp_path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("there is no systemd-analyze")
    text = UNIT.read_text()
    assert "KillMode=control-group" in text
    here = text.replace("/opt/shardmill/bin/prefect", sys.executable)
    (tmp_path / "shardmill-worker@pool.service").write_text(
        re.sub(r"^(User|Group)=.*$", r"\1=root", here, flags=re.MULTILINE)
    )
    checked = run_program(tool, "verify", "--man=no", tmp_path / "shardmill-worker@pool.service")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_image_is_clean_runs_as_nobody_special_and_keeps_scratch_on_a_disk() -> None:
    succeeded(run_program(Path(sys.executable).with_name("hadolint"), FOLDER / "Dockerfile"))
    users = re.findall(r"^USER (\d+)", IMAGE, re.MULTILINE)
    assert users
    assert "0" not in users
    assert re.search(r"^ARG EXTRAS=flow,s3$", IMAGE, re.MULTILINE)
    assert ".[${EXTRAS}]" in IMAGE
    assert re.search(r"^VOLUME /tmp$", IMAGE, re.MULTILINE)
    assert "--init" in IMAGE
    assert "--tmpfs" not in IMAGE
    assert "UMask=0022" in UNIT.read_text()


def test_the_image_is_built_from_every_module_of_the_distribution() -> None:
    """Setuptools only warns about a module that is missing."""
    copied = " ".join(re.findall(r"^COPY (?!--)(.+) \S+$", IMAGE, re.MULTILINE)).split()
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    modules = [f"{module}.py" for module in tool["py-modules"]]
    packages = [pattern.rstrip("*") for pattern in tool["packages"]["find"]["include"]]
    assert {*modules, *packages} <= {*copied}


def test_python_s_own_library_is_compiled_in_the_image(tmp_path) -> None:
    """The base image may forbid Python to compile what is imported."""
    assert "pip install --no-cache-dir --compile" in IMAGE
    (command,) = re.findall(r"^RUN python (-m compileall .*)$", IMAGE, re.MULTILINE)
    assert IMAGE.index("compileall") < IMAGE.index("\nUSER ")
    (tmp_path / "module.py").write_text("answer = 42\n")
    words = command.replace("/usr/local/lib/python3.11", str(tmp_path)).split()
    assert str(tmp_path) in words
    forbidden = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    succeeded(run_program(sys.executable, *words, env=forbidden))
    assert [*tmp_path.rglob("*.pyc")]


PODS: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


@pytest.mark.parametrize("deployment", PODS, ids=lambda each: each["metadata"]["name"])
def test_a_kubernetes_deployment_is_whole(deployment) -> None:
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    spec = deployment["spec"]
    pod = spec["template"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    assert container["args"][0] == spec["template"]["metadata"]["labels"]["pool"]
    assert container["args"][0] in {PARENTS, HOSTS}
    name, _, tag = container["image"].partition(":")
    assert name == "shardmill"
    assert tag not in {"", "latest"}
    assert "requests" in container["resources"]
    assert container["envFrom"] == [{"secretRef": {"name": "shardmill-worker"}}]
    assert pod["securityContext"]["runAsNonRoot"]
    user = re.findall(r"^USER (\d+)", IMAGE, re.MULTILINE)[-1]
    assert str(pod["securityContext"]["runAsUser"]) == user
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert "--with-healthcheck" in container["args"]  # the probes need it
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    for volume in pod["volumes"]:
        assert volume["emptyDir"].get("medium") is None  # a disk; "Memory" would be a tmpfs


def test_every_worker_takes_one_run_at_a_time() -> None:
    slurm = (FOLDER / "slurm.sbatch").read_text()
    limits = re.findall(r'--limit"?,? "?(\d+)', f"{UNIT.read_text()}\n{IMAGE}\n{slurm}")
    limits += [pod["spec"]["template"]["spec"]["containers"][0]["args"][2] for pod in PODS]
    assert limits == ["1"] * 5


SETTINGS = """\
# systemd, Docker, Kubernetes and Slurm read this alike
PREFECT_API_URL=http://server/api

AWS_SECRET_ACCESS_KEY=a/b+c=$HOME&d;e #f `g` (h)
PREFECT_API_AUTH_STRING=user:p!ss%w*rd"""


def test_the_slurm_script_starts_a_worker_a_node(tmp_path) -> None:
    script = FOLDER / "slurm.sbatch"
    (tmp_path / "worker.env").write_text(SETTINGS)
    names = ("PREFECT_API_URL", "AWS_SECRET_ACCESS_KEY", "PREFECT_API_AUTH_STRING", "TMPDIR")
    (tmp_path / "srun").write_text(f'#!/bin/sh\nprintenv {" ".join(names)}; echo "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SHARDMILL_SCRATCH": "/local"}
    ended = succeeded(run_program("bash", script, env=env, folder=tmp_path))
    *settings, command = ended.stdout.splitlines()
    assert settings == [
        "http://server/api",
        "a/b+c=$HOME&d;e #f `g` (h)",
        "user:p!ss%w*rd",
        "/local",
    ]
    assert command.split() == [
        "--kill-on-bad-exit=0",
        "--export=ALL",
        "/opt/shardmill/bin/prefect",
        "worker",
        "start",
        "--pool",
        HOSTS,
        "--limit",
        "1",
    ]
