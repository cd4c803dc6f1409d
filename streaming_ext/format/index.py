"""A split of a dataset as training opens it: the manifest, then the index, both checked.

Nothing in an index is trusted before it is checked.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from streaming_ext.base.errors import (
    CorruptDatasetError,
    FileMissingError,
    NotADatasetError,
    UsageError,
)
from streaming_ext.format.layout import MANIFEST, Split, kept_index_path
from streaming_ext.format.schema import content_hash
from streaming_ext.format.shard import ShardTable, is_shard_name
from streaming_ext.store.remote import Remote

if TYPE_CHECKING:
    from streaming_ext.format.manifest import Manifest
    from streaming_ext.format.schema import FileRecord
    from streaming_ext.format.spec import TokenizerIdentity

MAX_INDEX_BYTES: Final = 2**31


@dataclass(frozen=True, kw_only=True)
class TokenIndex(ShardTable):
    """One split of one dataset.

    Attributes:
        split: folder of the split below the root, empty for a plain folder of shards.
        manifest: the manifest of the whole dataset; None for a set of another tool.
        index_hash: content hash of the index, which identifies the data.
    """

    split: str
    manifest: "Manifest | None"
    index_hash: str

    @property
    def eot_id(self) -> int | None:
        """The id that ends a document; None if it is unknown."""
        return None if self.tokenizer is None else self.tokenizer.eot_id

    @property
    def tokenizer(self) -> "TokenizerIdentity | None":
        """Identity of the tokenizer that made the ids; None if it is unknown."""
        return None if self.manifest is None else self.manifest.spec.tokenizer


def read_index(
    remote: Remote,
    split: str | None,
    *,
    token_dtype: str | None = None,
    generation: str | None = None,
) -> TokenIndex:
    """Read and check the manifest of a dataset, then the index of a split.

    Args:
        remote: the folder of the dataset.
        split: the name of the split; None if `remote` is itself a plain folder of shards.
        token_dtype: type of an id, for sets of other tools that store ids as bytes.
        generation: the first characters of the hash of a generation's manifest; None for the
            newest generation.

    Raises:
        NotADatasetError: there is neither a manifest nor an index.
        CorruptDatasetError: the files of the dataset contradict each other.
        UsageError: there is no such generation or split.
    """
    manifest: Manifest | None = None
    with suppress(FileMissingError):  # of another tool, or not finished: `_read_foreign` decides
        manifest = _read_manifest(remote, generation)
    if split and not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", split):
        raise UsageError(f"`split` is the name of a folder in the dataset, got {split!r}.")
    name = f"{split}/index.json" if split else "index.json"
    if manifest is None:
        if generation is not None:
            raise UsageError(f"{remote.url} has no {MANIFEST}, and so no generations.")
        return _read_foreign(remote, split, name, token_dtype)
    if split not in manifest.splits:
        raise _no_such_split(remote.url, split, manifest.splits)
    where = f"{remote.url}/{name}"
    index = _read_index(remote, split, manifest.splits[split].index)
    _require_own_manifest(remote, manifest)
    spec = manifest.spec
    table = spec.shard_format.table(index, where=where)
    expected_sizes = spec.shard_format.raw_size(table.samples)
    summary = manifest.splits[split]
    found = int(table.samples.sum()), len(table.names), table.sample_tokens, table.dtype
    expected = summary.samples, summary.shards, spec.sequence_length, spec.dtype
    if table.names and found != expected:
        raise CorruptDatasetError(
            f"{where}: samples, shards, tokens per sample and type of an id are {found}, the "
            f"manifest says {expected}."
        )
    for shard in np.flatnonzero(table.unpacked_sizes != expected_sizes)[:1]:
        raise CorruptDatasetError(
            f"{where}: {table.raw_names[shard]} has {table.unpacked_sizes[shard]} bytes, its "
            f"{table.samples[shard]} samples make {expected_sizes[shard]}."
        )
    return _opened(table, split, manifest, index)


def _read_manifest(remote: Remote, generation: str | None) -> "Manifest":
    """Read the manifest of the newest generation, or of the requested one."""
    from streaming_ext.format.manifest import chosen_generation
    from streaming_ext.format.reading import manifest_of, read_listed

    where = f"{remote.url}/{MANIFEST}"
    manifest, data = remote.read_checked(
        MANIFEST, lambda data: (manifest_of(data, where=where), data), limit=MAX_INDEX_BYTES
    )
    older = chosen_generation(manifest, data, generation, where=remote.url)
    if older is None:
        return manifest
    return manifest_of(read_listed(remote, older), where=f"{remote.url}/{older.path}")


def _read_index(remote: Remote, split: Split, index: "FileRecord") -> bytes:
    """Read the index of a split that a manifest lists."""
    from streaming_ext.format.reading import read_listed

    try:
        return read_listed(remote, index)
    except CorruptDatasetError:
        # It may be the index of a newer generation. An index under its hash is never overwritten.
        kept = kept_index_path(split, index.xxh128)
        with suppress(FileMissingError):
            return read_listed(remote, index.model_copy(update={"path": kept}))
        raise


def _require_own_manifest(remote: Remote, manifest: "Manifest") -> None:
    """Make sure that the manifest has the specification that is in the record of the first part."""
    from streaming_ext.format.reading import listed_record, read_listed

    for summary in manifest.parts[:1]:
        file = summary.record
        with suppress(FileMissingError):  # training may read a copy without the records
            data = read_listed(remote, file)
            listed_record(data, manifest, 0, where=f"{remote.url}/{file.path}")


def _read_foreign(
    remote: Remote, split: str | None, name: str, token_dtype: str | None
) -> TokenIndex:
    """Read a token set of another tool; refuse the output of an unfinished shardmill run."""
    try:
        data = remote.read(name, limit=MAX_INDEX_BYTES)
    except FileMissingError as error:
        root = remote.path or Path(name)
        if known := [path.parent.name for path in root.glob("*/index.json")]:
            raise _no_such_split(remote.url, split, known) from error
        raise _not_a_dataset(remote.url, f"neither {MANIFEST} nor {name}") from error
    from streaming_ext.format.mds_index import read_table

    folder = f"{split}/" if split else ""
    table = read_table(
        data,
        where=f"{remote.url}/{name}",
        fetch=lambda stored, limit: remote.read(f"{folder}{stored}", limit=limit),
        token_dtype=token_dtype,
    )
    if split and all(map(is_shard_name, table.names)):
        raise _not_a_dataset(remote.url, f"there is {name} of an unfinished run, no {MANIFEST}")
    return _opened(table, split or "", None, data)


def _opened(table: ShardTable, split: str, manifest: "Manifest | None", index: bytes) -> TokenIndex:
    index_hash = content_hash(index)
    return TokenIndex(split=split, manifest=manifest, index_hash=index_hash, **vars(table))


def _no_such_split(url: str, split: str | None, known: Iterable[str]) -> UsageError:
    """Return the error for a split that a dataset does not have."""
    splits = ", ".join(map(repr, sorted(known)))
    return UsageError(f"`split` is {split!r}, and {url} has {splits}. Name one that it has.")


def _not_a_dataset(url: str, what: str) -> NotADatasetError:
    """Return the error for a location that holds no dataset."""
    return NotADatasetError(
        f"There is no dataset at {url}: {what}. Give the folder that holds manifest.json, or wait "
        "until the run that writes it has finished."
    )
