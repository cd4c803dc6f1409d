"""The playbook, run on two machines that SSH reaches; what it installs takes part in a run.

A machine is an sshd with its own /opt/shardmill, /etc/shardmill and /etc/systemd/system. The test
is slow: both machines install everything.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.command_line import assert_same_dataset, run_program, succeeded
from tests.servers.environments import python_environment
from tests.servers.prefect.server import free_port
from tests.servers.prefect.worker import HOSTS, ON_HOSTS, ROOT, Cluster, cluster
from tests.test_readme import blocks

ANSIBLE = "ansible-core==2.19.14"
OWN = ("/opt/shardmill", "/etc/shardmill", "/etc/systemd/system")
MACHINES = ("host1", "host2")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
    pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin") is None, reason="there is no sshd"),
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def ansible() -> Path:
    """The folder with Ansible's programs, installed on first use."""
    return python_environment(ANSIBLE)


@pytest.fixture
def ssh(tmp_path) -> Iterator[Path]:
    """Two machines; yields a configuration of `ssh` for them."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    config = tmp_path / "ssh_config"
    with ExitStack() as stack:
        Path("/run/sshd").mkdir(exist_ok=True)
        for own in OWN:
            if not Path(own).exists():  # the mount point of `machine`
                Path(own).mkdir()
                stack.callback(Path(own).rmdir)
        for name in MACHINES:
            stack.enter_context(machine(name, tmp_path / name, key, config))
        yield config


def machine(name: str, root: Path, key: Path, config: Path) -> ExitStack:
    """Start a machine, and add it to the configuration of `ssh`."""
    root.mkdir()
    port = free_port()
    # The machine gets pip's settings from this environment.
    pip = " ".join(f'"{k}={v}"' for k, v in os.environ.items() if k.startswith("PIP_"))
    (root / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {key}\nAuthorizedKeysFile {key}.pub\n"
        "PermitRootLogin prohibit-password\nUsePAM no\nStrictModes no\n"
        f"PidFile none\nSubsystem sftp internal-sftp\n{f'SetEnv {pip}' if pip else ''}\n"
    )
    mounts = []
    for own in OWN:
        folder = root / own.replace("/", "_")
        folder.mkdir()
        mounts.append(f"mount --bind {folder} {own}")
    start = f"{' && '.join(mounts)} && exec /usr/sbin/sshd -D -e -f {root}/sshd_config"
    with (root / "sshd.log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", start], stdout=log, stderr=log
        )
    with config.open("a") as known:
        known.write(
            f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  User root\n"
            f"  IdentityFile {key}\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
        )
    stack = ExitStack()
    stack.callback(process.wait)
    stack.callback(process.kill)
    return stack


def test_machines_become_hosts(ssh, ansible, served, api_url, dataset, tmp_path) -> None:
    (commands,) = [
        block for block in blocks("docs/operate/clusters.md", "bash") if "ansible" in block
    ]
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "build", "dist", "tests"))
    (checkout / "worker.env").write_text(f"PREFECT_API_URL={api_url}\n")
    env = {
        **served.env,
        "PATH": f"{Path(sys.executable).parent}:{ansible}:{os.environ['PATH']}",
        "ANSIBLE_SSH_ARGS": f"-F {ssh}",
        "ANSIBLE_BECOME_METHOD": "su",
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,  # the first Python on the path may be a shim
        "SOURCE_DATE_EPOCH": "1700000000",  # so that a second build gives the same wheel
        "ANSIBLE_HOME": str(tmp_path / "ansible"),
    }

    def run_playbook() -> str:
        return succeeded(run_program("bash", "-euxc", commands, env=env, folder=checkout)).stdout

    said = run_playbook()
    for name in MACHINES:
        root = tmp_path / name
        assert (root / "_opt_shardmill" / "bin" / "shardmill").exists()
        assert (root / "_etc_systemd_system" / "shardmill-worker@.service").exists()
        settings = root / "_etc_shardmill" / "worker.env"
        assert settings.read_text() == f"PREFECT_API_URL={api_url}\n"
        assert settings.stat().st_mode & 0o777 == 0o600
    assert api_url not in said  # the output shows nothing that may be secret
    again = run_playbook()
    assert again.count("changed=0") == len(MACHINES), again

    folder = tmp_path / "cluster"
    folder.mkdir()
    with cluster(api_url, served.env, folder) as hosts:
        for name in MACHINES:
            start_as_the_unit_does(hosts, name, ssh)
        succeeded(served.shard(tmp_path / "out", executor=ON_HOSTS, partitions=2))
    assert_same_dataset(dataset, tmp_path / "out")


def start_as_the_unit_does(hosts: Cluster, name: str, ssh: Path) -> None:
    """Run the command of the systemd unit with its environment: there is no systemd here."""
    command = (
        f"set -a; . /etc/shardmill/worker.env; export HOME={hosts.folder}/{name}-home; "
        f"export PREFECT_WORKER_QUERY_SECONDS=1; exec /opt/shardmill/bin/prefect worker start "
        f"--pool {HOSTS} --limit 1 --name {name}"
    )
    with (hosts.folder / f"{name}.log").open("wb") as log:
        hosts.hosts[name] = subprocess.Popen(
            ["ssh", "-tt", "-F", str(ssh), name, command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
