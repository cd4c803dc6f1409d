"""Plain MDS sets of ids, such as llm-foundry's: an `index.json` lists shards of rows of one length.

Rows go on from shard to shard of an index, in its order.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from streaming_ext.base.errors import CorruptDatasetError, SourceError, UsageError
from streaming_ext.format.compression import decompress
from streaming_ext.format.mds_index import read_table
from streaming_ext.format.schema import content_hash
from streaming_ext.format.shard import ShardTable
from streaming_ext.format.spec import IdOptions, ReadOptions
from streaming_ext.text.documents.files import Span
from streaming_ext.text.token_sets.files.ids_of_file import IdsOfFile, held_ids
from streaming_ext.text.token_sets.files.set_file import Folder, SetFile, pin_of, set_file
from streaming_ext.text.token_sets.id_documents import require_width
from streaming_ext.text.token_sets.token_set import TokenSetFormat

_PACKED = ("", ".zstd", ".gz", ".bz2")
_INDEX = "index.json"


class MdsSet(TokenSetFormat):
    """See `TokenSetFormat`; `--dtype` is for sets that store ids as bare bytes."""

    name = "mds"
    suffixes = tuple(f".mds{packed}" for packed in _PACKED)
    tells_type = False

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """The ids of a shard, which must be the one that the index describes.

        Raises:
            SourceError: it is not.
            UsageError: there is no index, or it is of other columns.
        """
        listed, name = _listed(file, options.dtype), file.name
        table, number = listed.table, listed.number(file)
        data = file.whole()
        expected = table.hashes[number]
        if len(data) != table.sizes[number] or (expected and content_hash(data) != expected):
            raise SourceError(
                f"{name}: {len(data):,} bytes that are not the {int(table.sizes[number]):,} which "
                "its index describes. It is cut short or changed; copy it again."
            )
        samples = int(table.samples[number])
        try:
            if (codec := table.codecs[number]) is not None:
                size = int(table.stored_raw_sizes[number])
                data = decompress(data, codec=codec, raw_size=size)
            if table.rewriting is not None:
                data = table.rewriting(data, samples=samples, where=name)
        except CorruptDatasetError as error:
            raise SourceError(f"{name}: {error}") from error
        first = len(data) - samples * table.sample_bytes
        if first < 0:
            raise SourceError(f"{name}: does not hold the {samples:,} samples of its index.")
        if (
            table.rewriting is None
            and table.head_check is not None
            and (
                fault := table.head_check(
                    np.frombuffer(data, np.uint8),
                    samples=samples,
                    header=first,
                    sample_bytes=table.sample_bytes,
                )
            )
        ):
            raise SourceError(f"{name}: {fault}. Copy the shard and its index again.")
        ids = np.frombuffer(data, np.dtype(table.dtype).newbyteorder("<"), offset=first)
        if options.dtype is not None:  # the set does not tell it
            require_width(ids, where=name)
        return held_ids(ids)

    def pin(self, file: SetFile, options: IdOptions) -> str:
        """Of the index, and of all that it lists."""
        listed = _listed(file, options.dtype)
        return pin_of(listed.folder, (_INDEX, *listed.table.names))

    def glance(self, file: SetFile, options: IdOptions) -> None:
        """Read the index alone."""
        _listed(file, options.dtype).number(file)

    def outside(self, path: Path, options: ReadOptions, span: Span | None) -> bytes:
        """See `TokenSetFormat.outside`; also what the index tells of the shard."""
        file = set_file(path, str(path))
        listed = _listed(file, None if options.ids is None else options.ids.dtype)
        table, number = listed.table, listed.number(file)
        told = (table.dtype, table.sample_tokens, int(table.samples[number]), table.codecs[number])
        return repr(told).encode() + super().outside(path, options, span)

    def neighbour(self, file: SetFile, step: int, options: IdOptions) -> SetFile | None:
        """The shard before or behind it in the index."""
        listed = _listed(file, options.dtype)
        number = listed.number(file) + step
        names = listed.table.names
        return listed.folder.open(names[number]) if 0 <= number < len(names) else None


@dataclass(frozen=True, slots=True)
class _Listed:
    """What an index lists, below its folder."""

    folder: Folder
    table: ShardTable
    numbers: dict[str, int]

    def key(self, file: SetFile) -> str:
        """The name of a shard, from the folder of the index."""
        return next(key for folder, key in file.folders() if str(folder) == str(self.folder))

    def number(self, file: SetFile) -> int:
        """Of a shard in the index."""
        key = self.key(file)
        if key not in self.numbers:
            raise UsageError(f"{file.name}: {self.folder}/{_INDEX} does not list it. Leave it out.")
        return self.numbers[key]


def _listed(file: SetFile, dtype: str | None) -> _Listed:
    """The index that lists a shard: in its folder, or the nearest one above."""
    for folder, _ in file.folders():
        if folder.holds(_INDEX) and (index := folder.open(_INDEX)) is not None:
            return _read(index, dtype)
    raise UsageError(
        f"{file.name}: there is no {_INDEX} beside it or above. Write it with the set."
    )


@lru_cache(4)
def _read(index: SetFile, dtype: str | None) -> _Listed:
    folder = index.folder

    def fetch(name: str, size: int) -> bytes:
        found = folder.open(name)
        if found is None:
            raise SourceError(f"{folder}/{name}: the file is gone.")
        return found.whole()

    try:
        table = read_table(index.whole(), where=index.name, fetch=fetch, token_dtype=dtype)
    except CorruptDatasetError as error:
        raise UsageError(str(error)) from error
    if lost := [name for name in table.names if folder.open(name) is None]:
        raise UsageError(
            f"{index.name}: lists {lost[0]}{' and more' if len(lost) > 1 else ''}, which is not "
            "there. Copy the set again."
        )
    return _Listed(folder, table, {name: number for number, name in enumerate(table.names)})
