"""Chains of transforms over samples, with a state after each sample.

A chain is a source and steps; each step is a flow of blocks of samples that reads the flow before
it (`flow.py`, `block.py`). `CheckpointableDataset` offers the sources (`sources.py`, `files.py`)
and steps (`steps.py`, `tokenizers.py`, `sft.py`). A pass of a chain is a `CheckpointableIterator`,
whose state names the position in the source and the samples to skip after it (`chain.py`). The
workers of a step are threads or processes (`processes.py`); the workers of a whole chain belong to
a loader (`loader.py`).
"""

from streaming_ext.transforms.chain import CheckpointableIterator
from streaming_ext.transforms.checkpointable import (
    CheckpointableDataset,
    concat_datasets,
    interleave_datasets,
)
from streaming_ext.transforms.loader import CheckpointableLoader

__all__ = [
    "CheckpointableDataset",
    "CheckpointableIterator",
    "CheckpointableLoader",
    "concat_datasets",
    "interleave_datasets",
]
