"""How the samples of a split lie in files: one file a format, found by its name."""

from typing import Protocol

from streaming_ext.dataset.formats.contract import ShardFormat
from streaming_ext.dataset.formats.mds import MdsFormat
from streaming_ext.dataset.formats.mds_index import MAX_SHARD_BYTES
from streaming_ext.dataset.formats.mds_index import read_table as foreign_table
from streaming_ext.dataset.formats.webdataset import WebdatasetFormat
from streaming_ext.dataset.shard import TokenDtype

__all__ = [
    "DEFAULT_FORMAT",
    "FORMATS",
    "MAX_SHARD_BYTES",
    "USUAL_COMPRESSION",
    "ShardFormat",
    "foreign_table",
    "shard_format",
]

DEFAULT_FORMAT = "mds"


class _Make(Protocol):
    def __call__(
        self, *, sequence_length: int, dtype: TokenDtype, shard_size: int, compression: str
    ) -> ShardFormat: ...


FORMATS: dict[str, _Make] = {DEFAULT_FORMAT: MdsFormat, "webdataset": WebdatasetFormat}
# What shards are compressed with unless something else is asked for.
USUAL_COMPRESSION: dict[str, str] = {DEFAULT_FORMAT: "zstd:1"}


def shard_format(
    name: str, *, sequence_length: int, dtype: TokenDtype, shard_size: int, compression: str
) -> ShardFormat:
    """The format of a name, for samples of one length; see `ShardFormat`.

    Raises:
        ValueError: nothing of this name is known.
    """
    if name not in FORMATS:
        raise ValueError(f"output format {name!r} is unknown: expected {', '.join(FORMATS)}")
    return FORMATS[name](
        sequence_length=sequence_length,
        dtype=dtype,
        shard_size=shard_size,
        compression=compression,
    )
