"""The training side of Shardmill: the format of a dataset, its manifest, and what reads it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming_ext.training.loader import StreamingTokenLoader
    from streaming_ext.training.streams import TokenStream
    from streaming_ext.training.text_dataset import StreamingTextDataset, TextStream
    from streaming_ext.training.token_dataset import StreamingTokenDataset
    from streaming_ext.transforms.checkpointable import CheckpointableDataset

__all__ = [
    "CheckpointableDataset",
    "StreamingTextDataset",
    "StreamingTokenDataset",
    "StreamingTokenLoader",
    "TextStream",
    "TokenStream",
]

_HOMES = {
    "CheckpointableDataset": "streaming_ext.transforms.checkpointable",
    "StreamingTextDataset": "streaming_ext.training.text_dataset",
    "TextStream": "streaming_ext.training.text_dataset",
    "StreamingTokenDataset": "streaming_ext.training.token_dataset",
    "StreamingTokenLoader": "streaming_ext.training.loader",
    "TokenStream": "streaming_ext.training.streams",
}


def __getattr__(name: str) -> Any:
    """Import torch and streaming only where they are used: tokenizing hosts have neither."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from streaming_ext.base.extras import extras_named

    with extras_named():
        return getattr(import_module(_HOMES[name]), name)
