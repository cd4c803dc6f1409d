"""`shardmill demo`: the main job on text and a vocabulary that are made on the spot."""

from pathlib import Path

from flows.commands.shard import run_shard
from flows.terminal.consoles import out
from streaming_ext.base.errors import UsageError
from streaming_ext.store.locations import local_path, require_writable_name


def demo(output: Path = Path("demo-output")) -> int:
    """Run the main job on text and a vocabulary that are made here, and read a batch back.

    Parameters
    ----------
    output
        Folder for all of it.
    """
    from flows.demo import make_demo, read_back

    if output.parts and output.parts[0].endswith(":"):
        raise UsageError(f"{output}: the demo is made in a folder of this machine.")
    require_writable_name(str(output))
    config = make_demo(local_path(output), out)
    return run_shard(config) or read_back(config, out)
