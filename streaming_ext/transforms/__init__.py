"""Chains of transforms over samples, checkpointable at any of them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming_ext.transforms.checkpointable import (
        CheckpointableDataset,
        concat_datasets,
        interleave_datasets,
    )
    from streaming_ext.transforms.iterator import CheckpointableIterator
    from streaming_ext.transforms.loader import CheckpointableLoader

__all__ = [
    "CheckpointableDataset",
    "CheckpointableIterator",
    "CheckpointableLoader",
    "concat_datasets",
    "interleave_datasets",
]


def __getattr__(name: str) -> Any:
    """Import torch only where it is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = name.removeprefix("Checkpointable").lower()
    home = home if home in {"iterator", "loader"} else "checkpointable"
    return getattr(import_module(f"{__name__}.{home}"), name)
