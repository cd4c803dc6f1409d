"""The ids of a shard, checked from the stored file to the header of the raw one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.compression import decompress
from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.layout import Split
from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.shard import Shard, TokenArray
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import CorruptDatasetError
from tasks.core.memories import Memory
from tasks.core.reading.dataset_files import DatasetFiles

_AT_ONCE = 2**19  # ids, which stay in the cache of a core from one look at them to the next
Ids = npt.NDArray[Any]  # uint16 or uint32
Bytes = npt.NDArray[np.uint8]


def read_tokens(files: DatasetFiles, split: Split, shard: Shard, spec: DatasetSpec) -> TokenArray:
    """The samples of a shard.

    Raises:
        CorruptDatasetError: saying what was expected and found, not where.
        StorageError: it cannot be read.
    """
    return read_with_room(files, split, shard, spec, Memory(), before=0)[0]


def read_with_room(
    files: DatasetFiles,
    split: Split,
    shard: Shard,
    spec: DatasetSpec,
    memory: Memory,
    *,
    before: int,
) -> tuple[TokenArray, Bytes]:
    """The samples of a shard, and what it was read into: all this for `joined`.

    Args:
        files: of the dataset.
        split: of the shard.
        shard: to read.
        spec: of the dataset.
        memory: to read into.
        before: bytes to leave free before the shard.

    Raises:
        CorruptDatasetError: saying what was expected and found, not where.
        StorageError: it cannot be read.
    """
    shard_format = spec.shard_format
    if not 0 < shard.samples <= shard_format.samples_per_shard:
        raise CorruptDatasetError(
            f"recorded with {shard.samples} samples, expected 1 to {shard_format.samples_per_shard}"
        )
    raw_size = shard_format.raw_size(shard.samples)
    if shard.raw_bytes != raw_size:
        raise CorruptDatasetError(
            f"recorded with {shard.raw_bytes} raw bytes, {shard.samples} samples take {raw_size}"
        )
    stored = FileRecord(path=f"{split}/{shard.name}", size=shard.size, xxh128=shard.hash)
    # No codec makes incompressible data so much longer.
    files.check_size(stored, limit=raw_size + raw_size // 8 + 2**16)
    room = memory.of(before + stored.size + 1)
    files.read_into(stored, room.data[before:])
    raw: bytes | memoryview = room.data[before:-1]
    if shard.zip_name is not None:
        raw = decompress(raw, codec=spec.compression, raw_size=raw_size)
        if (found := content_hash(raw)) != shard.raw_hash:
            raise CorruptDatasetError(
                f"its content hash is {found} once unpacked, expected {shard.raw_hash}"
            )
    return shard_format.tokens_of(raw, shard.samples), room


def joined(begun: Sequence[Ids], ids: Ids, memory: Bytes) -> Ids:
    """Ids that were begun with and those behind them, without a copy of the latter if possible.

    Where they lie in the memory of their shard as they are, the others are put before them, over
    the header that was checked and the bytes that were left free: those of `begun` at least.
    """
    size = sum(some.nbytes for some in begun)
    if not size:
        return ids
    at = ids.ctypes.data - memory.ctypes.data
    if not np.may_share_memory(ids, memory) or at < size:
        return np.concatenate([*begun, ids])
    count = size // ids.itemsize
    stream = np.frombuffer(memory, ids.dtype, count + len(ids), at - size)
    np.concatenate(begun, out=stream[:count])
    return stream


def behind(ids: Ids, eot: int) -> npt.NDArray[np.int64]:
    """The places behind each end-of-text id, (documents,)."""
    found = [
        np.flatnonzero(ids[first : first + _AT_ONCE] == eot) + first + 1
        for first in range(0, len(ids), _AT_ONCE)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)
