"""Chains of transforms over samples, checkpointable at any of them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming_ext.transforms.checkpointable import CheckpointableDataset
    from streaming_ext.transforms.combined import concat_datasets, interleave_datasets
    from streaming_ext.transforms.iterator import CheckpointableIterator
    from streaming_ext.transforms.loader import CheckpointableLoader

__all__ = ["CheckpointableDataset", "CheckpointableIterator", "CheckpointableLoader",
           "concat_datasets", "interleave_datasets"]  # fmt: skip

_HOMES = {
    "CheckpointableDataset": "checkpointable",
    "CheckpointableIterator": "iterator",
    "CheckpointableLoader": "loader",
    "concat_datasets": "combined",
    "interleave_datasets": "combined",
}


def __getattr__(name: str) -> Any:
    """Import torch only where it is used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
