"""A split's `index.json`, checked and held as arrays: which shards there are and where tokens lie.

Nothing that an index says is trusted before it is checked: names stay below the split's folder,
sizes agree with each other, and the only thing unpacked is a flat array of token ids.
"""

import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from streaming_ext.dataset.foreign import SampleLayout, first_sample
from streaming_ext.dataset.formats.mds import COLUMN, INDEX_VERSION, MAX_SHARD_BYTES
from streaming_ext.dataset.hashing import HASH, content_hash
from streaming_ext.dataset.layout import MANIFEST
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.reading import listed_record, manifest_of
from streaming_ext.errors import CorruptDatasetError, NotADatasetError, UsageError
from streaming_ext.format_version import FormatVersion, refuse_newer
from streaming_ext.sampler.order import Ints
from streaming_ext.shards.remote import FileMissingError, Remote, not_a_dataset

MAX_INDEX_BYTES: Final = 2**31
CROSSING_RUN: Final = 8  # shards a unit where sequences cross the border of shards

_ENCODING = re.compile(r"ndarray:(uint16|uint32|int32|int64):([1-9]\d{0,8})")
OWN_SHARD: Final = re.compile(r"\d{5,}/shard\.\d{5,}\.mds(\.[a-z0-9]+)?")
_STEP = r"(?!\.\.?(?:/|$))[A-Za-z0-9._ -]+"  # neither `.` nor `..`
_INSIDE = re.compile(rf"{_STEP}(?:/{_STEP})*")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_FOREIGN_CODECS = ("zstd", "gz", "bz2")


@dataclass(frozen=True, kw_only=True)
class TokenIndex:
    """One split of one dataset.

    Attributes:
        split: folder of the split below the root, empty for a plain MDS folder.
        names: stored file of each shard, relative to the split's folder.
        raw_names: the shard's file when unpacked.
        codecs: per shard, None where it is stored raw.
        sizes: bytes of each stored file: (shards,).
        raw_sizes: bytes of each raw shard: (shards,).
        hashes: XXH3-128 of each stored file, None where the index has none.
        raw_hashes: the same of each raw shard.
        samples: samples of each shard: (shards,).
        sample_tokens: tokens a sample.
        dtype: type of one id on disk.
        manifest: of the whole dataset, None for a set written by others.
        index_hash: content hash of the index: the identity of the data.
        unknown: what this set does not say of itself, in words.
        layout: how others' samples hold their ids, where a shard has to be rewritten; None where
            ids lie back to back.
        stored_raw_sizes: bytes of each shard as published, unpacked; `raw_sizes` are those of
            what is read here.
        stored_raw_hashes: XXH3-128 of the same.
    """

    split: str
    names: list[str]
    raw_names: list[str]
    codecs: list[str | None]
    sizes: Ints
    raw_sizes: Ints
    hashes: list[str | None]
    raw_hashes: list[str | None]
    samples: Ints
    sample_tokens: int
    dtype: str
    manifest: Manifest | None
    index_hash: str
    unknown: tuple[str, ...] = ()
    layout: SampleLayout | None = None
    stored_raw_sizes: Ints
    stored_raw_hashes: list[str | None]

    @property
    def token_starts(self) -> Ints:
        """First token of each shard in the split's stream, then the end: (shards + 1,)."""
        return np.concatenate([[0], np.cumsum(self.samples * self.sample_tokens)])

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return self.sample_tokens * np.dtype(self.dtype).itemsize

    @property
    def headers(self) -> Ints:
        """Bytes of each raw shard before its first sample: (shards,)."""
        return self.raw_sizes - self.samples * self.sample_bytes

    @property
    def eot_id(self) -> int | None:
        """The id that ends a document, None where it is unknown."""
        return None if self.manifest is None else self.manifest.spec.tokenizer.eot_id

    def bounds(self, sequence_length: int) -> Ints:
        """First sequence of each unit of the order, then their number: (units + 1,).

        Sequence i holds the tokens [i L, (i + 1) L) of the split laid end to end; what is less
        than one sequence at the very end is left out. A sequence belongs to the unit in which it
        starts. A unit is one shard; where sequences cross the border of shards it is a run of
        them, so that a reader of some units needs few shards beyond its own.
        """
        starts = self.token_starts
        step = 1 if not (starts[:-1] % sequence_length).any() else CROSSING_RUN
        edges = starts[: len(self.samples) : step]
        count = int(starts[-1]) // sequence_length
        first = np.minimum(-(-edges // sequence_length), count)
        return np.concatenate([first, [count]])


def read_index(remote: Remote, split: str | None, *, token_dtype: str | None = None) -> TokenIndex:
    """Open a dataset: manifest, then the index of a split, both checked.

    Args:
        remote: where the dataset is.
        split: which one; None where `remote` is a plain MDS folder itself.
        token_dtype: type of an id, for sets of others that store them as bytes.

    Raises:
        NotADatasetError: there is neither a manifest nor an index.
        CorruptDatasetError: what is there contradicts itself.
    """
    manifest: Manifest | None = None
    with suppress(FileMissingError):  # not one of ours, or not finished: the index decides below
        manifest = remote.read_checked(
            MANIFEST, lambda data: manifest_of(data, where=f"{remote.url}/{MANIFEST}"),
            limit=MAX_INDEX_BYTES,
        )  # fmt: skip
    if split and not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", split):
        raise UsageError(f"`split` is the name of a folder in the dataset, got {split!r}.")
    name = f"{split}/index.json" if split else "index.json"
    if manifest is None:
        return _read_foreign(remote, split, name, token_dtype)
    if split not in manifest.splits:
        raise not_a_dataset(remote.url, f"it has no split {split!r}, only {list(manifest.splits)}")
    expected = manifest.splits[split].index
    where = f"{remote.url}/{name}"

    def described(index: bytes) -> bytes:
        if len(index) != expected.size or content_hash(index) != expected.xxh128:
            raise CorruptDatasetError(
                f"{where} is not the index that the manifest describes: "
                f"{min(len(index), expected.size + 1)} bytes, expected {expected.size} with "
                f"XXH3-128 {expected.xxh128}, fetched twice. The dataset was rewritten or "
                "damaged: publish it again."
            )
        return index

    index = remote.read_checked(name, described, limit=expected.size)
    _require_own_manifest(remote, manifest)
    result = parse_index(index, split=split, where=where, manifest=manifest)
    spec = manifest.spec
    expected_sizes = spec.shard_format.raw_size(0) + result.samples * (4 + result.sample_bytes)
    facts = {
        "samples": (int(result.samples.sum()), manifest.splits[split].samples),
        "shards": (len(result.names), manifest.splits[split].shards),
        "tokens a sample": (result.sample_tokens, spec.sequence_length),
        "type of an id": (result.dtype, spec.dtype),
    }
    for fact, (ours, theirs) in facts.items():
        if ours != theirs and result.names:
            raise CorruptDatasetError(f"{where}: {fact}: {ours}, the manifest says {theirs}.")
    wrong = np.flatnonzero(result.raw_sizes != expected_sizes)
    if wrong.size:
        shard = int(wrong[0])
        raise CorruptDatasetError(
            f"{where}: {result.raw_names[shard]} has {result.raw_sizes[shard]} bytes, its "
            f"{result.samples[shard]} samples make {expected_sizes[shard]}."
        )
    return result


def _require_own_manifest(remote: Remote, manifest: Manifest) -> None:
    """Make sure that the manifest says what the dataset was made with, by the first record."""
    if not manifest.parts:
        return
    file = manifest.parts[0].record
    where = f"{remote.url}/{file.path}"
    with suppress(FileMissingError):  # a copy of what training reads, without the records
        remote.read_checked(
            file.path, lambda data: listed_record(data, manifest, 0, where=where), limit=file.size
        )


def _read_foreign(
    remote: Remote, split: str | None, name: str, token_dtype: str | None
) -> TokenIndex:
    """A plain MDS token set; where the split's folder has no index, an unfinished run of ours."""
    try:
        data = remote.read(name, limit=MAX_INDEX_BYTES)
    except FileMissingError as error:
        raise not_a_dataset(remote.url, f"neither {MANIFEST} nor {name}") from error
    result = parse_index(data, split=split or "", where=f"{remote.url}/{name}", remote=remote,
                         token_dtype=token_dtype)  # fmt: skip
    if split and all(OWN_SHARD.fullmatch(shard) for shard in result.names):
        raise not_a_dataset(remote.url, f"there is {name} of an unfinished run, no {MANIFEST}")
    return result


def parse_index(
    data: bytes,
    *,
    split: str,
    where: str,
    manifest: Manifest | None = None,
    remote: Remote | None = None,
    token_dtype: str | None = None,
) -> TokenIndex:
    """Check an index and lay it out as arrays.

    Args:
        data: the index.
        split: folder of the split.
        where: its name for messages.
        manifest: of the whole dataset, None for a set written by others.
        remote: where the first shard is looked into, if the index does not tell a sample's length.
        token_dtype: type of an id, where the set does not tell.

    Raises:
        NewerVersionError: it has a newer version than the one that is read here.
        CorruptDatasetError: it breaks a rule of the format; the message names shard and rule.
    """
    try:
        with _collection_paused():
            index = dict(json.loads(data))
            refuse_newer(index.get("version"), FormatVersion(INDEX_VERSION), what=where)
            table = [_entry(entry, token_dtype) for entry in list(index["shards"])]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDatasetError(f"{where} is no MDS index of tokens: {error!r}") from error
    if len(layouts := {row[-1] for row in table}) > 1:
        found = sorted(map(str, layouts))
        raise CorruptDatasetError(f"{where}: shards differ in their encoding: {found}")
    if not table and manifest is None:
        raise NotADatasetError(f"{where} lists no shards.")
    raw_sizes = np.array([row[4] for row in table], np.int64)
    samples = np.array([row[7] for row in table], np.int64)
    raw_hashes = [row[6] for row in table]
    layout: SampleLayout | None = None
    if not layouts:
        dtype, sample_tokens = manifest.spec.dtype, manifest.spec.sequence_length  # type: ignore[union-attr]
    elif isinstance(told := layouts.pop(), SampleLayout):
        if remote is None:
            raise CorruptDatasetError(f"{where}: its samples are not token ids of one length.")
        layout = told
        first, _, codec, size, raw_size, _, _, count, _ = table[0]
        dtype, sample_tokens = first_sample(
            layout, remote, f"{split}/{first}" if split else first, codec=codec, size=size,
            raw_size=raw_size, samples=count,
        )  # fmt: skip
    else:
        dtype, sample_tokens = told
    raw_names = [row[1] for row in table]
    if len(set(raw_names)) != len(raw_names):
        raise CorruptDatasetError(f"{where}: two shards have the same name.")
    result = TokenIndex(
        split=split,
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
        manifest=manifest,
        index_hash=content_hash(data),
        unknown=() if manifest is not None else _unknown(table, layout),
        layout=layout,
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
        unknown += ["whether all samples have one length, until a shard is read",
                    "a hash of its rewritten shards, so a damaged cache may go unseen"]  # fmt: skip
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
    digest = hashes.get(HASH)
    if digest is not None and not _DIGEST.fullmatch(digest):
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
