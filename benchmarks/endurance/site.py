"""The services of a run, all of them real and able to fail: S3, the way there, Prefect, scratch."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import CACHE
from tests.conftest import clean_environment
from tests.servers.fault_proxy import FaultProxy, Faults, fault_proxy
from tests.servers.prefect.server import PrefectServer
from tests.servers.storage.swift import (
    DAEMONS,
    SwiftServer,
    aws_environment,
    s3_client,
    swift_server,
)

BUCKET = "endurance"  # records hold the names of sources, so it is always the same
_SCRATCH_SIZE = "64m"
_OWN_MOUNTS = "SHARDMILL_BENCH_OWN_MOUNTS"


@dataclass(frozen=True, slots=True)
class Site:
    """The servers, and where the run works.

    Attributes:
        client: the client of S3, past the proxy.
        link: the rate to S3 and back, in bytes per second; None for no limit.
        scratch: the scratch folder of the disturbed run; a disk of its own if `bounded`.
    """

    s3: SwiftServer
    wire: FaultProxy
    prefect: PrefectServer
    client: Any
    folder: Path
    scratch: Path
    bounded: bool
    link: float | None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a run: S3 behind the proxy, Prefect, no settings of the user."""
        return {
            **clean_environment(self.folder / "home"),
            "XDG_CACHE_HOME": str(CACHE / "cache"),  # what is known of the tokenizer
            **aws_environment(self.wire.url),
            "PREFECT_API_URL": self.prefect.url,
        }

    def calm(self) -> None:
        """The wire as it is without faults."""
        self.wire.inflict(Faults(bytes_per_second=self.link))

    def recorded(self, output: str) -> int:
        """Count the files that are recorded below a prefix of the bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=f"{output}/parts/"
        )
        return sum(page["KeyCount"] for page in pages)

    def kill_s3(self) -> None:
        """kill -9 of all its daemons, first of the one that answers."""
        for kind in reversed(DAEMONS):
            self.s3.kill(kind)

    def start_s3(self) -> None:
        """Start it again; it answers when all of it is there."""
        for kind in DAEMONS:
            self.s3.start(kind)


@contextmanager
def open_site(folder: Path, link: float | None) -> Iterator[Site]:
    """Start the servers; they end with the block."""
    with ExitStack() as stack:
        s3 = stack.enter_context(swift_server(folder / "swift"))
        wire = stack.enter_context(fault_proxy(s3.port))
        (folder / "prefect").mkdir()
        prefect = PrefectServer(folder / "prefect")
        prefect.start()
        stack.callback(prefect.stop)
        scratch = folder / "scratch"
        scratch.mkdir()
        bounded = _OWN_MOUNTS in os.environ
        if bounded:  # gone with the namespace, however this process ends
            size = f"size={_SCRATCH_SIZE}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", scratch], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", scratch], check=True)
        client = s3_client(s3.url)
        stack.callback(client.close)
        client.create_bucket(Bucket=BUCKET)
        yield Site(s3, wire, prefect, client, folder, scratch, bounded, link)


def enter_own_mounts() -> None:
    """Go on in a mount namespace of this process's own, where a small disk can be had.

    Where the system allows none, nothing happens, and no disk will be filled.
    """
    command = ["unshare", "--mount", "--map-root-user"]
    if _OWN_MOUNTS in os.environ or shutil.which(command[0]) is None:
        return
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        return
    script = [sys.executable, "-m", "benchmarks.endurance", *sys.argv[1:]]
    os.execvpe(command[0], [*command, *script], {**os.environ, _OWN_MOUNTS: "1"})  # noqa: S606
