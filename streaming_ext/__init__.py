"""The training side of Shardmill: the format of a dataset, its manifest, and its readers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming_ext.training.arguments import TokenStream
    from streaming_ext.training.features.text import StreamingTextDataset, TextStream
    from streaming_ext.training.loader import StreamingTokenLoader
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
    "StreamingTextDataset": "streaming_ext.training.features.text",
    "TextStream": "streaming_ext.training.features.text",
    "StreamingTokenDataset": "streaming_ext.training.token_dataset",
    "StreamingTokenLoader": "streaming_ext.training.loader",
    "TokenStream": "streaming_ext.training.arguments",
}


def __getattr__(name: str) -> Any:
    """Import torch and streaming only where they are used: tokenizing hosts have neither."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from streaming_ext.base.extras import extras_named

    with extras_named():
        return getattr(import_module(_HOMES[name]), name)
