"""The command `shardmill demo`: make text and a vocabulary, shard the text, read a batch."""

import os
import shlex
import sys
from pathlib import Path
from shutil import which

from flows.commands.outputs import shard
from flows.terminal.printing import counted, out, say
from streaming_ext.base.errors import MissingExtraError, UsageError
from streaming_ext.store.locations import local_path, require_writable_name
from streaming_ext.store.scratch import new_folder
from tasks.core.config import ShardConfig

_FILES = 6
_DOCUMENTS = 500  # per file
_VOCABULARY = 4096  # ids


def demo(output: Path = Path("demo-output")) -> None:
    """Make text, shard it, and read a batch back.

    Parameters
    ----------
    output
        Folder for everything that the demo makes.
    """
    if output.parts and output.parts[0].endswith(":"):
        raise UsageError(f"{output}: the demo needs a folder of this machine.")
    require_writable_name(str(output))
    config = make_sources(local_path(output))
    say(out, f"Made {_FILES * _DOCUMENTS:,} documents of text in {config.sources[0]}")
    shard(config)
    try:
        say(out, f"\nTraining reads {_read_batch(config.output)}.", keep="\n")
    except MissingExtraError as missing:  # a host that only makes datasets
        say(out, f"\nTraining would read a batch now. {missing}", keep="\n")
    say(out, "\nThen try:", keep="\n")
    made = Path(os.path.relpath(config.output))
    folder = local_path(output) if made.parts[0] == ".." else made.parent
    data = str(folder / made.name)
    vocabulary = folder / Path(config.tokenizer).name
    again = ("--tokenizer", vocabulary, "--pattern", config.pattern, "--shuffle", "documents")
    for words in (
        ("inspect", data),
        ("inspect", data, "--sample", 0),
        ("verify", data),
        ("export", "megatron", data, "--output", folder / "megatron"),
        ("shard", folder / "sources", "--output", folder / "shuffled", *again),
    ):
        say(out, f"  {shlex.join([*_program(), *map(str, words)])}")


def _program() -> list[str]:
    """Return the words that call this program from the user's shell, even if PATH lacks it."""
    called = sys.argv[0]
    if Path(called).name != "shardmill":
        return [sys.executable, "-m", "shardmill"]
    found = which("shardmill")
    return ["shardmill" if found and Path(found).samefile(called) else called]


def make_sources(folder: Path) -> ShardConfig:
    """Make source files and a vocabulary; return the configuration for sharding them."""
    from tasks.core.synthetic import make_documents, train_vocabulary, write_parquet_files

    sources, vocabulary = folder / "sources", folder / "demo.tiktoken"
    sources.mkdir(parents=True, exist_ok=True)
    write_parquet_files(sources, _FILES, _DOCUMENTS, seed=0)
    train_vocabulary(make_documents(_DOCUMENTS, seed=0), _VOCABULARY, vocabulary)
    return ShardConfig(
        sources=(str(sources),),
        output=str(folder / "dataset"),
        tokenizer=str(vocabulary),
        pattern="gpt2",
        sequence_length=512,
        holdout_fraction=0.01,
    )


def _read_batch(dataset: str) -> str:
    """Read a batch of a dataset as training does, and describe it."""
    from streaming_ext import StreamingTokenDataset, StreamingTokenLoader

    with new_folder() as cache:
        tokens = StreamingTokenDataset(
            remote=dataset, local=cache, batch_size=4, shuffle=True, dp_rank=0, dp_world_size=1
        )
        rows, length = next(iter(StreamingTokenLoader(tokens)))["tokens"].shape
        tokens.close()
    return f"{counted(tokens.size, 'sequence')} of {length} tokens, in batches of {rows}"
