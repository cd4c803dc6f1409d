"""Compression of shards, and unpacking that is bounded whatever a file holds."""

import bz2
import gzip
import zlib
from dataclasses import dataclass

import pyarrow as pa

from streaming_ext.base.errors import CorruptDatasetError, UsageError

# codec name -> (default level, allowed levels), as in mosaicml-streaming
_CODECS: dict[str, tuple[int, range]] = {
    "zstd": (3, range(1, 23)),
    "gz": (9, range(1, 10)),
    "bz2": (9, range(1, 10)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """A codec and its level, written as in mosaicml-streaming: `zstd:1`, `gz`."""

    codec: str
    level: int

    @classmethod
    def parse(cls, text: str) -> "Compression | None":
        """Read ``codec[:level]``; ``none`` is no compression.

        Raises:
            UsageError: the codec or its level is unknown.
        """
        if text == "none":
            return None
        codec, colon, level_text = text.partition(":")
        if codec not in _CODECS:
            raise UsageError(
                f"Compression {text!r} is unknown: expected none or one of {', '.join(_CODECS)}, "
                "with an optional level after a colon, for example zstd:1."
            )
        default_level, levels = _CODECS[codec]
        if not colon:
            return cls(codec=codec, level=default_level)
        # mosaicml-streaming reads no sign and no leading zero.
        if level_text not in {str(level) for level in levels}:
            raise UsageError(
                f"Compression {text!r}: {codec} takes a level from {levels.start} to "
                f"{levels.stop - 1}, got {level_text!r}."
            )
        return cls(codec=codec, level=int(level_text))

    def compress(self, data: bytes | memoryview) -> bytes:
        """Compress one raw shard; the same input gives the same bytes on any number of cores."""
        if self.codec == "zstd":
            # A third faster than the library that MDSWriter uses, and the result is no larger.
            packed: bytes = pa.Codec("zstd", self.level).compress(data, asbytes=True)
            return packed
        if self.codec == "gz":
            return gzip.compress(data, self.level, mtime=0)
        return bz2.compress(data, self.level)


def decompress(data: bytes | memoryview, *, codec: str, raw_size: int) -> bytes:
    """Unpack `data`, but never more than `raw_size` bytes.

    Args:
        data: the compressed bytes.
        codec: the codec's name; a level after a colon is ignored.
        raw_size: size of the result in bytes, as the index states it.

    Raises:
        CorruptDatasetError: the data are damaged, or do not unpack to exactly `raw_size` bytes.
    """
    name = codec.partition(":")[0]
    try:
        if name == "zstd":
            raw = pa.Codec("zstd").decompress(data, decompressed_size=raw_size, asbytes=True)
        elif name in {"gz", "bz2"}:
            unpacker = zlib.decompressobj(wbits=31) if name == "gz" else bz2.BZ2Decompressor()
            raw = unpacker.decompress(data, raw_size + 1)
            if len(raw) <= raw_size and (not unpacker.eof or unpacker.unused_data):
                raise CorruptDatasetError(f"damaged {codec} data: it ends elsewhere")
        else:
            raise CorruptDatasetError(
                f"compressed with {codec!r}; this reader knows {', '.join(_CODECS)}"
            )
    except (OSError, ValueError, zlib.error) as error:
        raise CorruptDatasetError(f"damaged {codec} data: {error}") from error
    if len(raw) != raw_size:
        raise CorruptDatasetError(f"unpacks to {len(raw)} bytes, the index says {raw_size}")
    return bytes(raw)
