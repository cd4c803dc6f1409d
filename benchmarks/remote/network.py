"""A link of a known speed: two network namespaces' veth pair shaped by `tc`; needs root.

python -m benchmarks.remote.network     # what a bare socket moves over it
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

NAMESPACE = f"shardmill-{os.getpid()}"
HERE, THERE = "10.203.77.1", "10.203.77.2"
_SEND = """
import socket, sys
with socket.create_server((sys.argv[1], 9000)) as listener:
    print("ready", flush=True)
    connection, _ = listener.accept()
    for _ in range(int(sys.argv[2])):
        connection.sendall(bytes(2**20))
"""


def may_shape() -> bool:
    """Whether this user can make namespaces."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in ("ip", "tc"))


def inside() -> list[str]:
    """What a command begins with that is to run at the far end."""
    return ["ip", "netns", "exec", NAMESPACE]


class Link:
    """The near end is this process's network, the far end `THERE`."""

    def __init__(self, near: str, far: str) -> None:
        self._near, self._far = near, far

    def shape(self, bytes_per_second: float | None) -> None:
        """Let so much through in each direction from now on; None for all that goes."""
        for device, prefix in ((self._near, []), (self._far, inside())):
            subprocess.run(
                [*prefix, "tc", "qdisc", "del", "dev", device, "root"],
                capture_output=True,
                check=False,
            )
            if bytes_per_second is not None:
                bits, burst = int(bytes_per_second * 8), max(2**18, int(bytes_per_second / 100))
                run(
                    *prefix,
                    "tc",
                    "qdisc",
                    "add",
                    "dev",
                    device,
                    "root",
                    "tbf",
                    "rate",
                    f"{bits}bit",
                    "burst",
                    str(burst),
                    "latency",
                    "100ms",
                )

    def speed(self, megabytes: int) -> float:
        """Bytes a second that a bare socket receives."""
        command = [*inside(), sys.executable, "-c", _SEND, THERE, str(megabytes)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
            assert sender.stdout is not None
            sender.stdout.readline()
            with socket.create_connection((THERE, 9000)) as connection:
                buffer, began, received = bytearray(2**20), time.perf_counter(), 0
                while count := connection.recv_into(buffer):
                    received += count
                return received / (time.perf_counter() - began)


def run(*command: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True)


@contextmanager
def link() -> Iterator[Link]:
    """Make the far end, and take it away again."""
    near, far = f"sm{os.getpid()}a", f"sm{os.getpid()}b"
    run("ip", "netns", "add", NAMESPACE)
    try:
        run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", NAMESPACE)
        run("ip", "addr", "add", f"{HERE}/30", "dev", near)
        run("ip", "link", "set", near, "up")
        run(*inside(), "ip", "addr", "add", f"{THERE}/30", "dev", far)
        run(*inside(), "ip", "link", "set", far, "up")
        run(*inside(), "ip", "link", "set", "lo", "up")
        yield Link(near, far)
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            run("ip", "netns", "del", NAMESPACE)


def main() -> None:
    with link() as made:
        for speed in (100e6, 1e9, None):
            made.shape(speed)
            found = made.speed(200 if speed == 100e6 else 1000)
            print(f"{speed or 0:13,.0f} B/s asked, {found:13,.0f} B/s through a bare socket")


if __name__ == "__main__":
    main()
