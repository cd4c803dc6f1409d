"""The hash that names the content of every file of a dataset."""

from typing import Final

import xxhash

HASH: Final = "xxh128"


def content_hash(data: bytes | memoryview) -> str:
    """XXH3-128 of some bytes, as hex."""
    digest = xxhash.xxh3_128()  # which lets other threads go on meanwhile; the short form does not
    digest.update(data)
    return digest.hexdigest()
