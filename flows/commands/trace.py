"""`shardmill trace`: which documents a training step held."""

import tempfile
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from flows.console.consoles import out
from streaming_ext.dataset.layout import Split
from streaming_ext.errors import NothingThereError, UsageError


def trace(
    path: str,
    *,
    step: int,
    batch_size: int,
    ranks: int = 1,
    epoch: int = 0,
    split: Split = "train",
    sequence_length: int | None = None,
    shuffle: Annotated[bool, Parameter(negative="--no-shuffle")] = True,
    shuffle_seed: int = 9176,
    shuffle_block_size: int = 2**18,
    num_canonical_nodes: int | None = None,
    packing: Literal["best_fit"] | None = None,
) -> int:
    """Tell which documents, of which source file and row, a training step held.

    The options that decide the order are those of `StreamingTokenDataset`; give the values that
    training ran with.

    Parameters
    ----------
    path
        Folder or URL of a dataset.
    step
        Step within the epoch, from 0.
    batch_size
        Sequences a rank and step.
    ranks
        Data-parallel ranks.
    epoch
        Number of the epoch, from 0.
    split
        The split that was read.
    sequence_length
        Tokens a sequence; the dataset's own unless given.
    shuffle
        Whether the order was shuffled.
    shuffle_seed
        Seed of the order.
    shuffle_block_size
        Sequences that were shuffled among each other.
    num_canonical_nodes
        Lanes through the data.
    packing
        How documents were packed into rows, where they were.
    """
    try:
        from streaming_ext.token_dataset import StreamingTokenDataset
    except ImportError as error:
        raise UsageError(f"`shardmill trace` needs the extra `train`: {error}.") from error
    if "://" not in path and not Path(path).is_dir():
        raise NothingThereError(f"{path} is no dataset: it is not there. Is the path right?")
    from flows.terminal.show_trace import show_trace
    from streaming_ext.trace import trace_step

    with tempfile.TemporaryDirectory() as cache:  # nothing is unpacked for this
        dataset = StreamingTokenDataset(
            remote=path if "://" in path else None,
            local=cache if "://" in path else path,
            split=split,
            sequence_length=sequence_length,
            batch_size=batch_size,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            shuffle_block_size=shuffle_block_size,
            num_canonical_nodes=num_canonical_nodes,
            packing=packing,
            dp_rank=0,
            dp_world_size=ranks,
        )
        show_trace(trace_step(dataset, step, epoch=epoch), out)
    return 0
