"""The playbook's script that installs: run by `sh`, with a stand-in for Python and pip."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deployments.test_files import FOLDER

PLAYBOOK: dict[str, Any] = yaml.safe_load((FOLDER / "ansible/hosts.yaml").read_text())[0]
PYTHON = """#!/bin/sh
if [ "$1" = -VV ]; then cat "$(dirname "$0")/version"; exit; fi
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "$@" >> pip.log\\n' > "$3/bin/pip"
chmod +x "$3/bin/pip"
"""


@dataclass(frozen=True)
class Host:
    """A folder as /opt/shardmill is."""

    prefix: Path
    python: Path

    def install(self, *, extras: str = "flow,s3") -> str:
        """Run the script; returns what it said."""
        (script,) = [
            task["ansible.builtin.command"]["argv"][2]
            for task in PLAYBOOK["tasks"]
            if task["name"] == "Programs"
        ]
        return subprocess.run(
            ["sh", "-euc", script, "install", str(self.python), "dist/x.whl", extras],
            cwd=self.prefix,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    def installed(self) -> list[str]:
        """What pip was told."""
        return (self.prefix / "pip.log").read_text().splitlines()


@pytest.fixture
def host(tmp_path) -> Host:
    prefix = tmp_path / "opt"
    (prefix / "dist").mkdir(parents=True)
    (prefix / "dist/x.whl").write_text("1")
    (prefix / "dist/constraints.txt").write_text("numpy==2")
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    (tmp_path / "version").write_text("Python 3.11")
    return Host(prefix, python)


def test_the_same_is_installed_once(host) -> None:
    assert host.install() == "installed"
    assert "x.whl[flow,s3]" in host.installed()[0]
    assert all("--compile" in words.split() for words in host.installed())
    assert host.install() == ""
    assert len(host.installed()) == 2


def test_a_change_of_extras_constraints_wheel_or_python_is_installed(host, tmp_path) -> None:
    host.install()
    assert host.install(extras="flow,gcs") == "installed"
    assert "x.whl[flow,gcs]" in host.installed()[2]
    (host.prefix / "dist/constraints.txt").write_text("numpy==3")
    assert host.install(extras="flow,gcs") == "installed"
    (host.prefix / "dist/x.whl").write_text("2")
    assert host.install(extras="flow,gcs") == "installed"
    (host.prefix / "bin/leftover").touch()
    (tmp_path / "version").write_text("Python 3.12")
    assert host.install(extras="flow,gcs") == "installed"
    assert not (host.prefix / "bin/leftover").exists()  # of the other Python
    assert host.install(extras="flow,gcs") == ""


def test_an_installation_that_was_broken_off_is_done_again(host) -> None:
    host.install()
    (host.prefix / "bin/pip").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(subprocess.CalledProcessError):
        host.install(extras="flow,gcs")
    (host.prefix / "bin/pip").write_text('#!/bin/sh\necho "$@" >> pip.log\n')
    assert host.install(extras="flow,gcs") == "installed"


def test_hosts_are_not_all_restarted_at_once_and_have_one_user_id() -> None:
    assert "25%" in PLAYBOOK["serial"]
    users = [task.get("ansible.builtin.user") for task in PLAYBOOK["tasks"]]
    (user,) = [user for user in users if user]
    assert user["uid"] == "{{ shardmill_uid }}"
    assert PLAYBOOK["vars"]["shardmill_uid"] == 10001
