"""Sets whose files are held in memory: litData's chunks, MDS shards, WebDataset tars."""

import io
import json
import re
from functools import lru_cache

import numpy as np
import pyarrow as pa

from streaming_ext.base.errors import CorruptDatasetError, SourceError, UsageError, one_line
from streaming_ext.format.mds_index import read_table
from streaming_ext.format.shard import ShardTable, difference
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.documents.files import Span, Stream, packed_suffixes
from streaming_ext.text.documents.source_format import faults
from streaming_ext.text.documents.tar_members import Member, tar_members
from streaming_ext.text.token_sets.set_file import (
    Ids,
    IdsOfFile,
    SetFile,
    held_ids,
    holds,
    open_in,
    pin_of,
)
from streaming_ext.text.token_sets.token_set import TokenSetFormat, require_width

_INDEX = "index.json"
_ARRAYS = {5: "uint16", 6: "uint32", 2: "int32", 3: "int64"}
_TENSORS = {15: "int32", 16: "int32", 17: "int64", 18: "int64"}  # of torch; what litGPT writes
_TYPES = {f"no_header_numpy:{code}": kind for code, kind in _ARRAYS.items()} | {
    f"no_header_tensor:{code}": kind for code, kind in _TENSORS.items()
}
_CODEC = "zstd"  # perhaps followed by a colon and a level


class LitdataSet(TokenSetFormat):
    """litData's chunks, whose items are documents; `index.json` next to them holds the type."""

    name = "litdata"
    suffixes = (".bin",)

    def companions(self, key: str) -> tuple[str, ...]:
        """See `TokenSetFormat.companions`: the index of all chunks."""
        return (_INDEX,)

    def glance(self, file: SetFile, options: IdOptions) -> None:
        """See `TokenSetFormat.glance`: the index alone."""
        _type_of(file)

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`."""
        (dtype, is_packed), data = _type_of(file), file.read()
        kind = np.dtype(dtype).newbyteorder("<")
        if is_packed:
            try:
                with pa.CompressedInputStream(pa.BufferReader(data), _CODEC) as stream:
                    data = bytes(stream.read())
            except OSError as error:
                raise SourceError(
                    f"{file.name}: damaged {_CODEC} data: {one_line(error)}. Copy it again."
                ) from error
        items = int.from_bytes(data[:4], "little")
        head = 4 * (items + 2)
        # offsets: (items + 1,), in bytes
        offsets = np.frombuffer(data[4:head], "<u4", len(data[4:head]) // 4).astype(np.int64)
        lengths = np.diff(offsets, prepend=head, append=len(data))
        if (
            len(offsets) != items + 1
            or lengths[[0, -1]].any()
            or (lengths % kind.itemsize).any()
            or (lengths < 0).any()
        ):
            raise SourceError(
                f"{file.name}: {len(data):,} bytes, in which its {items:,} items do not follow "
                f"each other as {kind.name} ids. It is cut short; copy it again."
            )
        starts = (offsets[:-1] - head) // kind.itemsize
        return held_ids(np.frombuffer(data, kind, offset=head), starts=np.unique(starts))


def _type_of(file: SetFile) -> tuple[str, bool]:
    """The type of a chunk's ids, and whether it is packed; the index next to it must list it."""
    index = file.companion(_INDEX)
    dtype, is_packed, names = _read(index)
    if file.key not in names:
        raise UsageError(f"{file.name}: {index.name} does not list it. Leave it out.")
    return dtype, is_packed


@lru_cache(4)
def _read(index: SetFile) -> tuple[str, bool, frozenset[str]]:
    """Type of the ids in all chunks, whether these are packed, and their names."""
    try:
        fields = json.loads(index.read())
        (form,) = fields["config"]["data_format"]
        codec = fields["config"]["compression"]
        names = frozenset(chunk["filename"] for chunk in fields["chunks"])
        counted = any(chunk["dim"] is not None for chunk in fields["chunks"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{index.name}: no index of litData: {one_line(error)}.") from error
    is_packed = str(codec).partition(":")[0] == _CODEC
    if str(form) not in _TYPES or not (is_packed or codec is None) or (names and not counted):
        raise UsageError(
            f"{index.name}: chunks of {form!r}, compressed with {codec}; only chunks of ids are "
            f"read ({', '.join(_TYPES)}), written with item_loader=TokensLoader(), not compressed "
            f"or with {_CODEC}."
        )
    for name in sorted(names):
        index.companion(name)
    return _TYPES[form], is_packed, names


_PACKED = ("", ".zstd", ".gz", ".bz2")


class MdsSet(TokenSetFormat):
    """Plain MDS, such as llm-foundry's: an `index.json` lists shards of rows of one length.

    Rows continue from shard to shard of an index, in its order. `--dtype` is for sets that store
    ids as bare bytes.
    """

    name = "mds"
    suffixes = tuple(f".mds{packed}" for packed in _PACKED)
    states_type = False

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`: the index must describe the shard."""
        _, table, number = _entry_of(file, options.dtype)
        name, data = file.name, file.read()
        cause = difference(data, int(table.sizes[number]), table.hashes[number])
        try:
            if not cause:
                data = table.unpacked(number, data, where=name)
                cause = table.fault_of(number, np.frombuffer(data, np.uint8))
        except CorruptDatasetError as error:
            cause = str(error)
        if cause:
            raise SourceError(f"{name}: {cause}. Copy the shard and its index again.")
        first = int(table.headers[number])
        ids = np.frombuffer(data, np.dtype(table.dtype).newbyteorder("<"), offset=first)
        if options.dtype is not None:  # the index does not say it
            require_width(ids, where=name)
        return held_ids(ids)

    def pin(self, file: SetFile, options: IdOptions) -> str:
        """See `TokenSetFormat.pin`: of the index, and of all that it lists."""
        folder, table, _ = _entry_of(file, options.dtype)
        return pin_of(folder, (_INDEX, *table.names))

    def glance(self, file: SetFile, options: IdOptions) -> None:
        """See `TokenSetFormat.glance`: the index alone."""
        _entry_of(file, options.dtype)

    def around(self, file: SetFile, options: IdOptions, span: Span | None) -> bytes:
        """See `TokenSetFormat.around`; also the entry of the shard in the index."""
        _, table, number = _entry_of(file, options.dtype)
        entry = (table.dtype, table.sample_tokens, int(table.samples[number]), table.codecs[number])
        return repr(entry).encode() + super().around(file, options, span)

    def neighbour(self, file: SetFile, step: int, options: IdOptions) -> SetFile | None:
        """See `TokenSetFormat.neighbour`: in the order of the index."""
        folder, table, number = _entry_of(file, options.dtype)
        number += step
        return open_in(folder, table.names[number]) if 0 <= number < len(table.names) else None


def _entry_of(file: SetFile, dtype: str | None) -> tuple[str, ShardTable, int]:
    """The folder of a shard's index, its own or the nearest one above; the index; its number."""
    for folder in file.folders():
        if holds(folder, _INDEX) and (index := open_in(folder, _INDEX)) is not None:
            table = _read_mds(index, dtype)
            key = file.name[len(folder) :].lstrip("/")
            if key not in table.names:
                raise UsageError(f"{file.name}: {index.name} does not list it. Leave it out.")
            return folder, table, table.names.index(key)
    raise UsageError(
        f"{file.name}: there is no {_INDEX} next to it or above. Write it with the set."
    )


@lru_cache(4)
def _read_mds(index: SetFile, dtype: str | None) -> ShardTable:
    def fetch(name: str, size: int) -> bytes:
        return index.companion(name).read()

    try:
        table = read_table(index.read(), where=index.name, fetch=fetch, token_dtype=dtype)
    except CorruptDatasetError as error:
        raise UsageError(str(error)) from error
    for name in table.names:
        index.companion(name)
    return table


class WebdatasetSet(TokenSetFormat):
    """WebDataset tars: a `.npy` a sample, a row or, with `--rows documents`, a document.

    Rows continue from tar to tar of one name, `train-000000.tar` and so on.
    """

    name = "webdataset"
    suffixes = (*packed_suffixes(".tar"), ".tgz")
    numbered = re.compile(r"(.*?)(\d+)(\.tar.*|\.tgz)")

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`."""
        found: dict[str, Ids] = {}
        with Stream(file) as stream, faults(file, "tar"):
            for member in tar_members(stream, (".npy",)):
                if member.data is None and not member.problem:
                    continue
                folder, _, base = member.name.rpartition("/")
                key = f"{folder}/{base.partition('.')[0]}"
                if key in found:
                    raise UsageError(
                        f"{file.name}: the sample {key.strip('/')} holds several .npy. Tars with "
                        "one array of ids a sample are read."
                    )
                found[key] = _array(member, file.name)
        if not found:
            raise UsageError(f"{file.name}: holds no sample with ids as .npy.")
        arrays = [*found.values()]
        starts = np.unique(np.cumsum([0, *map(len, arrays[:-1])]))
        is_document = options.rows == "documents"
        return held_ids(np.concatenate(arrays), starts=starts if is_document else None)


def _array(member: Member, where: str) -> Ids:
    if member.problem:
        raise SourceError(f"{where}: {member.name}: {member.problem}.")
    try:
        ids = np.load(io.BytesIO(member.data or b""), allow_pickle=False)
    except Exception as error:
        raise SourceError(f"{where}: {member.name}: no array: {one_line(error)}.") from error
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise UsageError(
            f"{where}: {member.name}: {ids.ndim} dimensions of {ids.dtype}; a list of whole "
            "numbers is expected."
        )
    return np.asarray(ids)
