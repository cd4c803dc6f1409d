"""The index of MDS shards, checked before anything of it is trusted.

Names stay below the split's folder, sizes agree with each other, and the only thing unpacked is a
flat array of token ids.
"""

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Annotated, Any, Final, Literal, NotRequired

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from streaming_ext.base.errors import CorruptDatasetError, NotADatasetError, UsageError
from streaming_ext.base.plain_faults import plain_faults
from streaming_ext.format.mds_foreign import COLUMN, SampleLayout, first_sample, flattened
from streaming_ext.format.schema import HASH, Hash, refuse_newer, refuse_newer_json
from streaming_ext.format.shard import Bytes, ShardTable

INDEX_VERSION: Final = 2
MAX_SHARD_BYTES: Final = 2**32 - 1  # offsets are u32

_ENCODING = re.compile(r"ndarray:(uint16|uint32|int32|int64):([1-9]\d{0,8})")
_STEP = "[A-Za-z0-9._ -]*[A-Za-z0-9_ -][A-Za-z0-9._ -]*"  # neither `.` nor `..`
_FOREIGN_CODECS = ("zstd", "gz", "bz2")
_STRICT: Final = ConfigDict(strict=True)

Fetch = Callable[[str, int], bytes]


class _Hashes(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    xxh128: NotRequired[Hash | None]


class _File(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    basename: Annotated[str, Field(max_length=512, pattern=f"^{_STEP}(/{_STEP})*$")]
    bytes: Annotated[int, Field(ge=1, le=MAX_SHARD_BYTES)]
    hashes: _Hashes


class _Entry(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    format: Literal["mds"]
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[Any]
    compression: NotRequired[str | None]
    raw_data: _File
    zip_data: _File | None
    samples: Annotated[int, Field(ge=1, le=MAX_SHARD_BYTES // 4)]


class _Index(TypedDict):
    version: NotRequired[Any]
    shards: list[_Entry]


_INDEX = TypeAdapter(_Index)


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
        where: name of the index for messages.
        empty: type of an id and tokens a sample, for one of ours that lists no shard; None for a
            set written by others, which must list some.
        fetch: returns a stored file, by its name and largest size, if only the first shard says how
            long a sample is.
        token_dtype: type of an id, if the set does not say it.

    Raises:
        NewerVersionError: its version is newer than the one that is read here.
        CorruptDatasetError: it breaks a rule of the format; the message names shard and rule.
        UsageError: the type of the ids is unknown, or another one than the user said.
    """
    try:
        with _collection_paused():
            index = _INDEX.validate_json(data)
        refuse_newer(index.get("version"), INDEX_VERSION, what=where)
        entries = index["shards"]
        layouts = {_layout(each, token_dtype) for each in entries}
    except ValidationError as error:
        refuse_newer_json(data, "version", INDEX_VERSION, what=where)
        raise CorruptDatasetError(
            f"{where} is no MDS index of tokens: {plain_faults(error)}"
        ) from error
    except ValueError as error:
        raise CorruptDatasetError(f"{where} is no MDS index of tokens: {error}") from error
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    if len(layouts) > 1:
        found = sorted(map(str, layouts))
        raise CorruptDatasetError(f"{where}: shards differ in their encoding: {found}")
    if not entries and empty is None:
        raise NotADatasetError(f"{where} lists no shards.")
    raw = [each["raw_data"] for each in entries]
    stored = [each["zip_data"] or each["raw_data"] for each in entries]
    codecs = [_codec(each) if each["zip_data"] else None for each in entries]
    if unknown := {codec for codec in codecs if codec} - {*_FOREIGN_CODECS}:
        raise CorruptDatasetError(f"{where}: compression is {unknown.pop()!r}")
    raw_sizes = np.array([each["bytes"] for each in raw], np.int64)
    samples = np.array([each["samples"] for each in entries], np.int64)
    raw_hashes = [each["hashes"].get(HASH) for each in raw]
    layout: SampleLayout | None = None
    if not layouts:
        dtype, sample_tokens = empty or ("uint16", 1)
    elif isinstance(stated := layouts.pop(), SampleLayout):
        if fetch is None:
            raise CorruptDatasetError(f"{where}: its samples are not token ids of one length.")
        layout = stated
        first = stored[0]
        dtype, sample_tokens = first_sample(
            layout,
            fetch(first["basename"], first["bytes"]),
            codec=codecs[0],
            raw_size=int(raw_sizes[0]),
            samples=int(samples[0]),
            where=f"{where}: {first['basename']}",
        )
    else:
        dtype, sample_tokens = stated
    raw_names = [each["basename"] for each in raw]
    if len(set(raw_names)) != len(raw_names):
        raise CorruptDatasetError(f"{where}: two shards have the same name.")
    result = ShardTable(
        names=[each["basename"] for each in stored],
        raw_names=raw_names,
        codecs=codecs,
        sizes=np.array([each["bytes"] for each in stored], np.int64),
        raw_sizes=raw_sizes
        if layout is None
        else 8 + samples * (4 + sample_tokens * np.dtype(dtype).itemsize),
        hashes=[each["hashes"].get(HASH) for each in stored],
        raw_hashes=raw_hashes if layout is None else [None] * len(raw),
        samples=samples,
        sample_tokens=sample_tokens,
        dtype=dtype,
        unknown=() if empty is not None else _unknown(raw_hashes, layout),
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


def _unknown(raw_hashes: list[str | None], layout: SampleLayout | None) -> tuple[str, ...]:
    unknown = ["the end-of-text id", "the tokenizer", "its documents", "padding"]
    if layout is not None:
        unknown += [
            "whether all samples have one length, until a shard is read",
            "a hash of its rewritten shards, so a damaged cache may go unseen",
        ]
        if layout.encoding == "bytes":
            unknown.append(f"the type of an id, taken as {layout.token_dtype}")
    elif None in raw_hashes:
        unknown.append(f"{HASH} of its shards, so only sizes and headers are checked")
    return tuple(unknown)


def _codec(entry: _Entry) -> str:
    return str(entry.get("compression")).partition(":")[0]


def _layout(entry: _Entry, token_dtype: str | None) -> tuple[str, int] | SampleLayout:
    columns = (entry["column_names"], entry["column_encodings"], entry["column_sizes"])
    return _layout_of(*map(tuple, columns), token_dtype)


@lru_cache
def _layout_of(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    sizes: tuple[Any, ...],
    token_dtype: str | None,
) -> tuple[str, int] | SampleLayout:
    """Type of an id and tokens a sample; entries differ little, so few are parsed."""
    match = _ENCODING.fullmatch(encodings[0]) if names == (COLUMN,) and encodings else None
    if match is not None:
        return match[1], int(match[2])
    return SampleLayout.of(list(names), list(encodings), list(sizes), token_dtype)
