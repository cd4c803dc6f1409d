"""The hash that names the content of every file of a dataset."""

from typing import Final

import xxhash

HASH: Final = "xxh128"


def content_hash(data: bytes | memoryview) -> str:
    """XXH3-128 of some bytes, as hex."""
    return xxhash.xxh3_128_hexdigest(data)
