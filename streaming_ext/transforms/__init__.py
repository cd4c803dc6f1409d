"""Chains of transforms over samples, with a state after each sample."""

from streaming_ext.transforms.checkpointable import (
    CheckpointableDataset,
    concat_datasets,
    interleave_datasets,
)
from streaming_ext.transforms.flow import CheckpointableIterator
from streaming_ext.transforms.loader import CheckpointableLoader

__all__ = [
    "CheckpointableDataset",
    "CheckpointableIterator",
    "CheckpointableLoader",
    "concat_datasets",
    "interleave_datasets",
]
