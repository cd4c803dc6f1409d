"""The playbook's installation script, run by `sh` with a stand-in for Python and pip."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.command_line import run_program, succeeded
from tests.deployments.test_files import FOLDER

PLAYBOOK: dict[str, Any] = yaml.safe_load((FOLDER / "ansible/hosts.yaml").read_text())[0]
PYTHON = """#!/bin/sh
if [ "$1" = -VV ]; then cat "$(dirname "$0")/version"; exit; fi
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "$@" >> pip.log\\n' > "$3/bin/pip"
chmod +x "$3/bin/pip"
"""


PIP = '#!/bin/sh\necho "$@" >> pip.log\n'  # the `pip` that the stand-in for Python makes


@pytest.fixture
def prefix(tmp_path) -> Path:
    """A folder like /opt/shardmill."""
    made = tmp_path / "opt"
    (made / "dist").mkdir(parents=True)
    (made / "dist/x.whl").write_text("1")
    (made / "dist/constraints.txt").write_text("numpy==2")
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "version").write_text("Python 3.11")
    return made


def install(prefix: Path, extras: str) -> str:
    """Run the script and return what it prints."""
    (script,) = [
        task["ansible.builtin.command"]["argv"][2]
        for task in PLAYBOOK["tasks"]
        if task["name"] == "Programs"
    ]
    words = ("sh", "-euc", script, "install", prefix.with_name("python"), "dist/x.whl", extras)
    return succeeded(run_program(*words, folder=prefix)).stdout.strip()


def test_the_same_is_installed_once_and_any_change_again(prefix, tmp_path) -> None:
    assert install(prefix, "flow,s3") == "installed"
    first, *others = (prefix / "pip.log").read_text().splitlines()
    assert "x.whl[flow,s3]" in first
    assert all("--compile" in words.split() for words in (first, *others))
    assert install(prefix, "flow,s3") == ""
    assert len((prefix / "pip.log").read_text().splitlines()) == 2
    assert install(prefix, "flow,gcs") == "installed"
    assert "x.whl[flow,gcs]" in (prefix / "pip.log").read_text().splitlines()[2]
    (prefix / "dist/constraints.txt").write_text("numpy==3")
    assert install(prefix, "flow,gcs") == "installed"
    (prefix / "dist/x.whl").write_text("2")
    assert install(prefix, "flow,gcs") == "installed"
    (prefix / "bin/leftover").touch()
    (tmp_path / "version").write_text("Python 3.12")
    assert install(prefix, "flow,gcs") == "installed"
    assert not (prefix / "bin/leftover").exists()  # from the other Python
    assert install(prefix, "flow,gcs") == ""


def test_an_installation_that_was_broken_off_is_done_again(prefix) -> None:
    install(prefix, "flow,s3")
    (prefix / "bin/pip").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(AssertionError):
        install(prefix, "flow,gcs")
    (prefix / "bin/pip").write_text(PIP)
    assert install(prefix, "flow,gcs") == "installed"


def test_hosts_are_not_all_restarted_at_once_and_have_one_user_id() -> None:
    assert "25%" in PLAYBOOK["serial"]
    users = [task.get("ansible.builtin.user") for task in PLAYBOOK["tasks"]]
    (user,) = [user for user in users if user]
    assert user["uid"] == "{{ shardmill_uid }}"
    assert PLAYBOOK["vars"]["shardmill_uid"] == 10001
