"""Hosts on one machine: network namespaces with a wire of their own to a bridge.

What runs in one reaches the others and this machine by the address of its interface alone; nothing
of this machine's loopback is there. Only for root.
"""

import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

SUBNET = "10.213.77"

CAN_HIDE = (
    shutil.which("unshare") is not None
    and not subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode
)


def _ip(*arguments: str) -> None:
    ended = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"ip {' '.join(arguments)}: {ended.stderr}"


def hiding(folder: Path) -> tuple[str, ...]:
    """The command below which a host sees another disk in place of a folder."""
    return ("unshare", "-m", "sh", "-c", f'mount -t tmpfs none {folder} && exec "$@"', "host")


def full(folder: Path) -> tuple[str, ...]:
    """The command below which a host sees a disk in place of a folder that has next to no room."""
    mount = f'mount -t tmpfs -o size=200k none {folder} && exec "$@"'
    return ("unshare", "-m", "sh", "-c", mount, "host")


def read_only_but(*folders: Path) -> tuple[str, ...]:
    """The command below which a host can write into these folders alone."""
    keep = " && ".join(f"mount --bind {folder} {folder}" for folder in folders)
    return (
        "unshare",
        "-m",
        "sh",
        "-c",
        f'{keep} && mount -o remount,bind,ro / && exec "$@"',
        "pod",
    )


class Network:
    """A bridge, and hosts that are plugged into it.

    Attributes:
        address: of this machine on it.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._id = uuid.uuid4().hex[:6]
        self._bridge = f"smb{self._id}"
        self._hosts: dict[str, str] = {}
        self.address = f"{SUBNET}.1"
        _ip("link", "add", self._bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", self._bridge)
        _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def add(self, name: str) -> tuple[str, ...]:
        """Make a host; returns the command that runs another one there."""
        space, wire = f"sm{self._id}{name}", f"sm{self._id}{len(self._hosts)}"
        _ip("netns", "add", space)
        self._stack.callback(_ip, "netns", "del", space)
        _ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", wire, "master", self._bridge, "up")
        inside = ("-n", space)
        _ip(*inside, "addr", "add", f"{SUBNET}.{10 + len(self._hosts)}/24", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "link", "set", "lo", "up")
        self._hosts[name] = wire
        return ("ip", "netns", "exec", space)

    def limit(self, name: str, megabytes: float) -> None:
        """Let no more than so many MB a second go to a host."""
        shape = ["rate", f"{megabytes * 8}mbit", "burst", "64k", "latency", "200ms"]
        subprocess.run(
            ["tc", "qdisc", "add", "dev", self._hosts[name], "root", "tbf", *shape], check=True
        )


@contextmanager
def network() -> Iterator[Network]:
    """A network that is gone after the block."""
    with ExitStack() as stack:
        yield Network(stack)
