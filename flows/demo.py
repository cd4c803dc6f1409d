"""The embedded default: text and a vocabulary made on the spot, sharded and read back."""

import tempfile
from pathlib import Path

from rich.console import Console

from flows.terminal.visible import counted
from streaming_ext.base.errors import StorageError, reason_of
from streaming_ext.store import open_storage
from tasks.core.check.decode import decode_samples
from tasks.core.config import ShardConfig
from tasks.core.synthetic import make_documents, train_vocabulary, write_parquet_files

NUM_FILES = 6
DOCUMENTS_A_FILE = 500
VOCABULARY_SIZE = 4096
SEED = 0


def make_demo(folder: Path, console: Console) -> ShardConfig:
    """Make source files and a vocabulary; returns what to shard.

    Raises:
        StorageError: the folder cannot be written to.
    """
    sources, vocabulary = folder / "sources", folder / "demo.tiktoken"
    try:
        sources.mkdir(parents=True, exist_ok=True)
        console.print(
            f"Making {NUM_FILES * DOCUMENTS_A_FILE:,} documents in {sources}", soft_wrap=True
        )
        write_parquet_files(sources, NUM_FILES, DOCUMENTS_A_FILE, seed=SEED)
        train_vocabulary(make_documents(DOCUMENTS_A_FILE, seed=SEED), VOCABULARY_SIZE, vocabulary)
    except OSError as error:
        raise StorageError(f"Cannot write to {folder}: {reason_of(error)}.") from error
    return ShardConfig(
        sources=(str(sources),),
        output=str(folder / "dataset"),
        tokenizer=str(vocabulary),
        pattern="gpt2",
        sequence_length=512,
        holdout_fraction=0.01,
    )


def read_back(config: ShardConfig, console: Console) -> int:
    """Show a sample of the dataset, and read a batch as training does; returns the exit code."""
    from flows.terminal.show_inspect import show_samples
    from streaming_ext import StreamingTokenDataset, StreamingTokenLoader

    root = Path(config.output)
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            console.print(f"  {path}  {path.stat().st_size:,} bytes", soft_wrap=True)
    show_samples(decode_samples(open_storage(config.output), "train", [0]), console)
    with tempfile.TemporaryDirectory() as cache:
        dataset = StreamingTokenDataset(
            remote=config.output,
            local=cache,
            batch_size=4,
            shuffle=True,
            dp_rank=0,
            dp_world_size=1,
        )
        batch = next(iter(StreamingTokenLoader(dataset)))
        dataset.close()
    rows, length = batch["tokens"].shape
    console.print(
        f"\nTraining reads {counted(dataset.size, 'sequence')}. A batch of {rows}, "
        f"each of {length} tokens:",
        soft_wrap=True,
    )
    console.print(str(batch["tokens"]), markup=False)
    return 0
