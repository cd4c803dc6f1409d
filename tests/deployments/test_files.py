"""What `deployments/` holds, by the tools that it is for."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.shard_dataset import require_absolute
from streaming_ext.errors import UsageError
from tasks.core.config import ShardConfig
from tests.servers.prefect_worker import HOSTS, PARENTS, ROOT

FOLDER = ROOT / "deployments"
UNIT = FOLDER / "shardmill-worker@.service"
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "prefect.yaml").read_text())[
    "deployments"
]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_a_deployment_names_a_flow_and_what_it_takes(deployment: dict[str, Any]) -> None:
    module, _, name = deployment["entrypoint"].rpartition(".")
    flow = getattr(importlib.import_module(module), name)
    assert deployment["schedules"] == []
    assert deployment["description"]
    if flow.name == "shard-partition":
        assert deployment["work_pool"]["name"] == HOSTS
        return
    assert flow.name == "shard-dataset"
    assert deployment["work_pool"]["name"] == PARENTS
    config = ShardConfig.model_validate(deployment["parameters"]["config"])
    names = {f"prefect://shard-partition/{other['name']}" for other in DEPLOYMENTS}
    assert config.executor in {"here", *names}


def test_a_run_of_all_of_fineweb_says_that_it_needs_an_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A folder of each host's own would be another one on every host."""
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "some deployment")
    (fineweb,) = [one for one in DEPLOYMENTS if one["name"] == "shard-fineweb"]
    config = ShardConfig.model_validate(fineweb["parameters"]["config"])
    with pytest.raises(UsageError, match="give it with -p output=URL"):
        require_absolute(config)
    require_absolute(config.model_copy(update={"output": "s3://bucket/text"}))


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("there is no systemd-analyze")
    text = UNIT.read_text()
    assert "KillMode=control-group" in text
    here = text.replace("/opt/shardmill/bin/prefect", sys.executable)
    (tmp_path / "shardmill-worker@pool.service").write_text(
        re.sub(r"^(User|Group)=.*$", r"\1=root", here, flags=re.MULTILINE)
    )
    checked = subprocess.run(
        [tool, "verify", "--man=no", str(tmp_path / "shardmill-worker@pool.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_image_is_clean_and_runs_as_nobody_special() -> None:
    tool = Path(sys.executable).with_name("hadolint")
    checked = subprocess.run(
        [str(tool), str(FOLDER / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout
    users = re.findall(r"^USER (\d+)", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert users
    assert "0" not in users
