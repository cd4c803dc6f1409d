"""The index of MDS shards, checked before anything in it is trusted.

Names must stay below the split's folder, and sizes must agree with each other. Nothing but a flat
array of token ids is ever unpacked.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NotRequired

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from streaming_ext.base.errors import CorruptDatasetError, NotADatasetError, UsageError
from streaming_ext.base.plain_faults import plain_faults
from streaming_ext.format.compression import decompress
from streaming_ext.format.mds_foreign import SampleLayout
from streaming_ext.format.schema import HASH, Hash, refuse_newer, refuse_newer_json
from streaming_ext.format.shard import Bytes, ShardTable

INDEX_VERSION: Final = 2
MAX_SHARD_BYTES: Final = 2**32 - 1  # offsets are u32

_STEP = "[A-Za-z0-9._ -]*[A-Za-z0-9_ -][A-Za-z0-9._ -]*"  # neither `.` nor `..`
_CODECS = (None, "zstd", "gz", "bz2")

Fetch = Callable[[str, int], bytes]


class _Hashes(TypedDict):
    xxh128: NotRequired[Hash | None]


class _File(TypedDict):
    basename: Annotated[str, Field(max_length=512, pattern=f"^{_STEP}(/{_STEP})*$")]
    bytes: Annotated[int, Field(ge=1, le=MAX_SHARD_BYTES)]
    hashes: _Hashes


class _Entry(TypedDict):
    format: Literal["mds"]
    column_names: tuple[str, ...]
    column_encodings: tuple[str, ...]
    column_sizes: tuple[Annotated[int, Field(ge=0)] | None, ...]
    compression: NotRequired[str | None]
    raw_data: _File
    zip_data: _File | None
    samples: Annotated[int, Field(ge=1, le=MAX_SHARD_BYTES // 4)]


class _Index(TypedDict):
    version: NotRequired[Any]
    shards: list[_Entry]


_INDEX = TypeAdapter(_Index)
_layout_of = lru_cache(SampleLayout.of)  # entries differ little, so few are parsed


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
        empty: type of an id and tokens per sample, for an index of ours that lists no shard; None
            for a set of another tool, which must list some.
        fetch: a function that returns a stored file by its name and largest size; called if only
            the first shard shows the length of a sample.
        token_dtype: type of an id, if the set does not state it.

    Raises:
        NewerVersionError: the version of the index is above `INDEX_VERSION`.
        CorruptDatasetError: the index breaks a rule of the format; the message names shard and
            rule.
        UsageError: the type of the ids is unknown, or is not the one that the user gave.
    """
    entries, layout = _parsed(data, where, token_dtype)
    raw = [each["raw_data"] for each in entries]
    stored = [each["zip_data"] or each["raw_data"] for each in entries]
    codecs = [_codec(each) if each["zip_data"] else None for each in entries]
    if unknown := {*codecs}.difference(_CODECS):
        raise CorruptDatasetError(f"{where}: compression is {unknown.pop()!r}")
    rewriting = None
    if layout is None:
        if empty is None:
            raise NotADatasetError(f"{where} lists no shards.")
        dtype, sample_tokens = empty
    elif (length := layout.flat_length) is not None:
        dtype, sample_tokens = str(layout.token_dtype), length
    elif fetch is None:
        raise CorruptDatasetError(f"{where}: its samples are not token ids of one length.")
    else:
        rewriting = layout.flattened
        first, name = stored[0], f"{where}: {stored[0]['basename']}"
        content = fetch(first["basename"], first["bytes"])
        if codecs[0] is not None:
            try:
                content = decompress(content, codec=codecs[0], raw_size=raw[0]["bytes"])
            except CorruptDatasetError as error:
                raise CorruptDatasetError(f"{name}: {error}") from error
        dtype, sample_tokens = layout.first_sample(content, entries[0]["samples"], name)
    raw_names = [each["basename"] for each in raw]
    if len(set(raw_names)) != len(raw_names):
        raise CorruptDatasetError(f"{where}: two shards have the same name.")
    raw_hashes = [each["hashes"].get(HASH) for each in raw]
    table = ShardTable(
        names=[each["basename"] for each in stored],
        raw_names=raw_names,
        codecs=codecs,
        sizes=np.array([each["bytes"] for each in stored], np.int64),
        hashes=[each["hashes"].get(HASH) for each in stored],
        unpacked_sizes=np.array([each["bytes"] for each in raw], np.int64),
        unpacked_hashes=raw_hashes,
        samples=np.array([each["samples"] for each in entries], np.int64),
        sample_tokens=sample_tokens,
        dtype=dtype,
        unknown=() if layout is None or empty is not None else _unknown(raw_hashes, layout),
        head_check=_head_fault,
        rewriting=rewriting,
    )
    # Before its first sample a raw shard holds at least the number of samples and the offsets.
    lying = np.flatnonzero(table.headers < 8 + 4 * table.samples) if rewriting is None else ()
    for shard in lying[:1]:
        raise CorruptDatasetError(
            f"{where}: {raw_names[shard]} of {table.raw_sizes[shard]} bytes cannot hold "
            f"{table.samples[shard]} samples of {sample_tokens} {dtype} ids."
        )
    return table


def _parsed(
    data: bytes, where: str, token_dtype: str | None
) -> tuple[list[_Entry], SampleLayout | None]:
    """Return the shards that an index lists, and their layout if it lists any; see `read_table`."""
    try:
        index = _INDEX.validate_json(data, strict=True)
        refuse_newer(index.get("version"), INDEX_VERSION, what=where)
        layouts = {
            _layout_of(
                each["column_names"], each["column_encodings"], each["column_sizes"], token_dtype
            )
            for each in index["shards"]
        }
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
    return index["shards"], next(iter(layouts), None)


def _head_fault(raw: Bytes, samples: int, header: int, sample_bytes: int) -> str:
    """Name a fault in the head of a raw shard: in its number of samples, or in an offset."""
    count = int(raw[:4].view("<u4")[0])
    if count != samples:
        return f"holds {count} samples, the index says {samples}"
    offsets = raw[4 : 4 + 4 * (samples + 1)].view("<u4").astype(np.int64)
    if not (offsets == header + np.arange(samples + 1) * sample_bytes).all():
        return "its samples do not lie where ids of one length lie"
    return ""


def _unknown(raw_hashes: list[str | None], layout: SampleLayout) -> tuple[str, ...]:
    unknown = ["the end-of-text id", "the tokenizer", "its documents", "padding"]
    if layout.flat_length is None:
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
