"""The index of MDS shards, checked before anything of it is believed.

Names stay below the split's folder, sizes agree with each other, and the only thing unpacked is a
flat array of token ids.
"""

import gc
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from streaming_ext.base.errors import (
    CorruptDatasetError,
    NewerVersionError,
    NotADatasetError,
    UsageError,
)
from streaming_ext.format.mds_foreign import COLUMN, SampleLayout, first_sample, flattened
from streaming_ext.format.schema import HASH, refuse_newer
from streaming_ext.format.shard import Bytes, ShardTable

INDEX_VERSION: Final = 2
MAX_SHARD_BYTES: Final = 2**32 - 1  # offsets are u32

_ENCODING = re.compile(r"ndarray:(uint16|uint32|int32|int64):([1-9]\d{0,8})")
_STEP = r"(?!\.\.?(?:/|$))[A-Za-z0-9._ -]+"  # neither `.` nor `..`
_INSIDE = re.compile(rf"{_STEP}(?:/{_STEP})*")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_FOREIGN_CODECS = ("zstd", "gz", "bz2")

Fetch = Callable[[str, int], bytes]


def read_table(
    data: bytes,
    *,
    where: str,
    empty: tuple[str, int] | None = None,
    fetch: Fetch | None = None,
    token_dtype: str | None = None,
) -> ShardTable:
    """Check an index and lay it out as arrays.

    Args:
        data: the index.
        where: its name for messages.
        empty: type of an id and tokens a sample, for one of ours that lists no shard; None for a
            set written by others, which must list some.
        fetch: gives a stored file, by its name and largest size, where the first shard must be
            looked into since the index does not tell a sample's length.
        token_dtype: type of an id, where the set does not tell.

    Raises:
        NewerVersionError: it has a newer version than the one that is read here.
        CorruptDatasetError: it breaks a rule of the format; the message names shard and rule.
        UsageError: the type of the ids is unknown, or another one than the user said.
    """
    try:
        with _collection_paused():
            index = dict(json.loads(data))
            refuse_newer(index.get("version"), INDEX_VERSION, what=where)
            table = [_entry(entry, token_dtype) for entry in list(index["shards"])]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptDatasetError(f"{where} is no MDS index of tokens: {error!r}") from error
    except NewerVersionError:
        raise
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    if len(layouts := {row[-1] for row in table}) > 1:
        found = sorted(map(str, layouts))
        raise CorruptDatasetError(f"{where}: shards differ in their encoding: {found}")
    if not table and empty is None:
        raise NotADatasetError(f"{where} lists no shards.")
    raw_sizes = np.array([row[4] for row in table], np.int64)
    samples = np.array([row[7] for row in table], np.int64)
    raw_hashes = [row[6] for row in table]
    layout: SampleLayout | None = None
    if not layouts:
        dtype, sample_tokens = empty or ("uint16", 1)
    elif isinstance(told := layouts.pop(), SampleLayout):
        if fetch is None:
            raise CorruptDatasetError(f"{where}: its samples are not token ids of one length.")
        layout = told
        first, _, codec, size, raw_size, _, _, count, _ = table[0]
        dtype, sample_tokens = first_sample(
            layout,
            fetch(first, size),
            codec=codec,
            raw_size=raw_size,
            samples=count,
            where=f"{where}: {first}",
        )
    else:
        dtype, sample_tokens = told
    raw_names = [row[1] for row in table]
    if len(set(raw_names)) != len(raw_names):
        raise CorruptDatasetError(f"{where}: two shards have the same name.")
    result = ShardTable(
        names=[row[0] for row in table],
        raw_names=raw_names,
        codecs=[row[2] for row in table],
        sizes=np.array([row[3] for row in table], np.int64),
        raw_sizes=raw_sizes
        if layout is None
        else 8 + samples * (4 + sample_tokens * np.dtype(dtype).itemsize),
        hashes=[row[5] for row in table],
        raw_hashes=raw_hashes if layout is None else [None] * len(table),
        samples=samples,
        sample_tokens=sample_tokens,
        dtype=dtype,
        unknown=() if empty is not None else _unknown(table, layout),
        head_check=_head_fault,
        rewriting=None if layout is None else partial(flattened, layout),
        stored_raw_sizes=raw_sizes,
        stored_raw_hashes=raw_hashes,
    )
    # count, offsets: what a raw shard holds at least before its first sample
    lying = np.flatnonzero(result.headers < 8 + 4 * result.samples)
    if lying.size:
        shard = int(lying[0])
        raise CorruptDatasetError(
            f"{where}: {raw_names[shard]} of {result.raw_sizes[shard]} bytes cannot hold "
            f"{result.samples[shard]} samples of {sample_tokens} {dtype} ids."
        )
    return result


def _head_fault(raw: Bytes, *, samples: int, header: int, sample_bytes: int) -> str:
    """What is wrong with the head of a raw shard: its count and the place of each sample."""
    count = int(raw[:4].view("<u4")[0])
    if count != samples:
        return f"holds {count} samples, the index says {samples}"
    offsets = raw[4 : 4 + 4 * (samples + 1)].view("<u4").astype(np.int64)
    if not (offsets == header + np.arange(samples + 1) * sample_bytes).all():
        return "its samples do not lie where ids of one length lie"
    return ""


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Keep the garbage collector from walking a million new objects again and again."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _unknown(table: list[Any], layout: SampleLayout | None) -> tuple[str, ...]:
    unknown = ["the end-of-text id", "the tokenizer", "its documents", "padding"]
    if layout is not None:
        unknown += [
            "whether all samples have one length, until a shard is read",
            "a hash of its rewritten shards, so a damaged cache may go unseen",
        ]
        if layout.encoding == "bytes":
            unknown.append(f"the type of an id, taken as {layout.token_dtype}")
    elif any(row[6] is None for row in table):
        unknown.append(f"{HASH} of its shards, so only sizes and headers are checked")
    return tuple(unknown)


@lru_cache
def _layout(
    form: str,
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    sizes: tuple[Any, ...],
    token_dtype: str | None,
) -> tuple[str, int] | SampleLayout:
    """Type of an id and tokens a sample; entries differ little, so few are looked at."""
    if form != "mds":
        raise ValueError(f"format is {form!r}, expected mds")
    match = (
        _ENCODING.fullmatch(encodings[0]) if names == (COLUMN,) == names[: len(encodings)] else None
    )
    if match is not None:
        return match[1], int(match[2])
    return SampleLayout.of(list(names), list(encodings), list(sizes), token_dtype)


def _entry(entry: dict[str, Any], token_dtype: str | None) -> tuple[Any, ...]:
    """One shard: stored name, raw name, codec, sizes, hashes, samples, layout."""
    columns = [tuple(entry[f"column_{what}"]) for what in ("names", "encodings", "sizes")]
    layout = _layout(entry["format"], *columns, token_dtype)
    raw, packed = entry["raw_data"], entry["zip_data"]
    raw_name, raw_size, raw_hash = _file(raw)
    name, size, digest = _file(packed) if packed is not None else (raw_name, raw_size, raw_hash)
    codec = None if packed is None else str(entry["compression"]).partition(":")[0]
    if codec is not None and codec not in _FOREIGN_CODECS:
        raise ValueError(f"compression is {entry['compression']!r}")
    samples = _count(entry["samples"], MAX_SHARD_BYTES // 4)
    return name, raw_name, codec, size, raw_size, digest, raw_hash, samples, layout


def _file(record: dict[str, Any]) -> tuple[str, int, str | None]:
    name, hashes = record["basename"], record["hashes"]
    _require_inside(name)
    if not isinstance(hashes, dict):
        raise TypeError(f"{name}: hashes are {hashes!r}, expected an object")
    digest = hashes.get(HASH)
    if digest is not None and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise ValueError(f"{name}: {digest!r} is no {HASH}")
    return name, _count(record["bytes"], MAX_SHARD_BYTES), digest


def _count(value: object, largest: int) -> int:
    if type(value) is not int or not 1 <= value <= largest:
        raise ValueError(f"{value!r} is no whole number from 1 to {largest}")
    return value


def _require_inside(name: object) -> None:
    """Refuse a name that is not plainly below its folder."""
    if not isinstance(name, str) or len(name) > 512 or not _INSIDE.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a file below its folder")
