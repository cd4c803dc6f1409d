"""Hosts that see other disks than this machine, by mount namespaces; these need root."""

import shutil
import subprocess
from pathlib import Path

CAN_HIDE = (
    shutil.which("unshare") is not None
    and not subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode
)


def hiding(folder: Path) -> tuple[str, ...]:
    """Return the command prefix under which a host sees another disk in place of a folder."""
    return _below(f"mount -t tmpfs none {folder}")


def read_only_but(*folders: Path) -> tuple[str, ...]:
    """Return the command prefix under which a host can write into these folders only."""
    keep = " && ".join(f"mount --bind {folder} {folder}" for folder in folders)
    return _below(f"{keep} && mount -o remount,bind,ro /")


def _below(mounts: str) -> tuple[str, ...]:
    return ("unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "host")
