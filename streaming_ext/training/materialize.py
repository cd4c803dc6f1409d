"""A dataset made of a text: `shardmill shard` with the same settings, in a process of its own.

A process of its own, since training needs no Prefect, and a user may have a package `flows` too.
"""

import json
import os
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from streaming_ext.errors import DatasetError, UsageError
from streaming_ext.from_text.fingerprint import text_fingerprint
from streaming_ext.from_text.text_cache import TextCache
from streaming_ext.from_text.text_stream import TextStream
from streaming_ext.loading.opening import open_streams
from streaming_ext.own_module import own_module
from streaming_ext.storage.local_paths import local_path
from streaming_ext.streams import TokenStream


def materialize(stream: TextStream, cache: TextCache, output: str, *, workers: int | None) -> None:
    """Run `shardmill shard`, and make sure that what it made has the rows of the text.

    Args:
        stream: the text.
        cache: of it.
        output: where the dataset goes: a folder, or a URL.
        workers: processes; by default one a core.

    Raises:
        UsageError: Prefect is not installed.
        DatasetError: the command failed, or found other files than were counted.
    """
    if find_spec("prefect") is None:
        raise UsageError(
            "materialize() runs `shardmill shard`, which needs Prefect: "
            "pip install 'shardmill[flow]', here or on the machine that runs the command."
        )
    with tempfile.TemporaryDirectory(prefix="shardmill-") as folder:
        config = Path(folder) / "shard.yaml"  # of which JSON is a part
        config.write_text(json.dumps(config_of(stream, cache, output, workers=workers)))
        ended = subprocess.run(
            own_module("flows.cli", "shard", "--config", str(config), "--quiet"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=_environment(),
        )
    if ended.returncode:
        raise DatasetError(
            f"`shardmill shard` ended with exit code {ended.returncode}: {ended.stderr.strip()}"
        )
    split = cache.index.split
    made = TokenStream(local=str(local_path(output)))
    if "://" in output:
        made = TokenStream(remote=output, local=cache.folder.parent / "made")
    (dataset,) = open_streams([made], split=split, limit=None, retries=2, timeout=60.0, options={})
    if text_fingerprint(dataset) != cache.index.index_hash:
        raise DatasetError(
            f"{output} is whole, but not made of the text that was counted: files changed since, "
            "or their server does not tell which version they are. A state of the text does not "
            "go on from it."
        )


def config_of(
    stream: TextStream, cache: TextCache, output: str, *, workers: int | None
) -> dict[str, Any]:
    """The configuration of `shardmill shard` that makes a dataset with the rows of a text."""
    told = stream.text.model_dump(mode="json", exclude={"scan_threads"}, exclude_none=True)
    told |= {"output": output, "sequence_length": cache.index.spec.sequence_length}
    return told if workers is None else told | {"workers": workers}


def _environment() -> dict[str, str]:
    """The environment, with modules from where this one is and no folder of the user's own."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
