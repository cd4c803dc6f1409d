"""A map of domains: runs of tokens of one domain in a split's stream, looked up in a mapped file.

starts     int64 (runs,), first token of each run
codes      int32 (runs,), number of its domain, -1 for padding
directory  JSON: names of the domains, counts, the hash of what stands before
end        length of the directory, 8 bytes; its XXH3-128, 16 bytes

The domain of each document of a split: what it is called, and where it begins.
"""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.base.arrays import Ints, ranges
from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import Split
from streaming_ext.format.provenance import (
    DocumentRows,
    PlacesOfPart,
    PlacesOfSources,
)
from streaming_ext.format.reading import read_listed
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import content_hash
from streaming_ext.format.shuffled import sources_of
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.documents import each_part, manifest_of, rows_of
from streaming_ext.reading.made_once import damaged, map_file, write_directory

VERSION: Final = 1
PADDING: Final = -1
_COPIED: Final = 1 << 24  # bytes at a time
Codes = npt.NDArray[np.int32]


def write_map(
    file: BinaryIO, runs: Iterable[tuple[Ints, Codes]], names: list[str], *, tokens: int
) -> None:
    """Write a map.

    Args:
        file: empty.
        runs: starts and codes, in order.
        names: of the domains by their codes, complete when all runs have come.
        tokens: of the split's stream.
    """
    count = 0
    whole = xxhash.xxh3_128()
    with tempfile.TemporaryFile() as codes:
        for starts, own in runs:
            count += len(starts)
            for data, out in ((starts.astype("<i8"), file), (own.astype("<i4"), codes)):
                out.write(data.tobytes())
            whole.update(starts.astype("<i8").tobytes())
        codes.seek(0)
        while some := codes.read(_COPIED):
            whole.update(some)
        codes.seek(0)
        shutil.copyfileobj(codes, file, _COPIED)
    told = {
        "version": VERSION,
        "runs": count,
        "tokens": tokens,
        "xxh128": whole.hexdigest(),
        "names": names,
    }
    write_directory(file, told)


class DomainMap:
    """The domains of the tokens of one split.

    Attributes:
        path: of the file.
        names: of the domains, by their codes.
        tokens: of the stream.
    """

    def __init__(self, path: Path, *, verify: bool = True) -> None:
        """Open a file.

        Args:
            path: of it.
            verify: whether its content is compared with its hash.

        Raises:
            FileNotFoundError: there is none.
            CorruptDatasetError: it is damaged, or was made by another version.
            StorageError: it cannot be mapped.
        """
        self.path = path
        data, told = map_file(path, version=VERSION)
        runs = told["runs"]
        if len(data) != 12 * runs or (verify and content_hash(data.data) != told["xxh128"]):
            raise damaged(path, "its content has another hash")
        self._starts = data[: 8 * runs].view("<i8")
        self._codes = data[8 * runs :].view("<i4")
        self.names = tuple(told["names"])
        self.tokens = int(told["tokens"])

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process maps the file itself, which this one has verified."""
        return partial(DomainMap, verify=False), (self.path,)

    def look_up(self, starts: Ints, lengths: Ints) -> tuple[Ints, Codes, Ints]:
        """The runs in some spans of the stream.

            runs of domain 0 from 0 on, of domain 1 from 10 on
            spans [4, 8) and [8, 12): of spans 0, 1 and 1, with 4, 2 and 2 tokens of 0, 0 and 1

        Args:
            starts: first token of each span: (spans,).
            lengths: tokens of each: (spans,).

        Returns:
            the span, the domain and the tokens of each run within a span: (runs,) each.
        """
        first = np.searchsorted(self._starts, starts, side="right") - 1
        behind = np.searchsorted(self._starts, starts + lengths, side="left")
        counts = behind - first
        span = np.repeat(np.arange(len(starts)), counts)
        run = ranges(first, counts)
        begins = np.maximum(self._starts[run], starts[span])
        ends = np.append(begins[1:], 0)
        last = np.cumsum(counts) - 1
        ends[last] = starts + lengths
        return span, self._codes[run], ends - begins


FOLDER: Final = "folder"
COLUMN: Final = "column:"
NOTHING: Final = "(nothing)"  # of a document that has no value in the column
MOST: Final = 1 << 16  # domains; a count of each stands in the state


def require_possible(by: str) -> None:
    """Refuse what is no way to tell domains.

    Raises:
        UsageError: it is none.
    """
    if by != FOLDER and not (by.startswith(COLUMN) and by != COLUMN):
        raise UsageError(
            f"`domain_by` must be {FOLDER!r} or {COLUMN + 'NAME'!r}, for a column that was kept by "
            f"--keep-columns; got {by!r}. Leave it out to count by streams."
        )


def runs_of(cache: ShardCache, by: str, names: list[str]) -> Iterator[tuple[Ints, Codes]]:
    """Where runs of documents of one domain begin in the split's stream, and which it is.

    Args:
        cache: of the split.
        by: see `require_possible`.
        names: filled with the names of domains, in the order in which they come.

    Raises:
        UsageError: the dataset does not tell, or there are too many domains.
        CorruptDatasetError: a record or table of documents is missing or damaged.
    """
    manifest, split = manifest_of(cache, "domain_by")
    column, kept = by.removeprefix(COLUMN), manifest.spec.keep_columns
    if by != FOLDER and column not in kept:
        raise UsageError(
            f"{cache.source.url} did not keep the column {column!r}; it kept "
            f"{', '.join(kept) or 'none'}. Make it with --keep-columns {column}, or pass "
            f"domain_by={FOLDER!r}."
        )
    sources = None
    if manifest.shuffled is not None and by == FOLDER:
        sources = PlacesOfSources(sources_of(read_listed(cache.source, manifest.shuffled.sources)))

    def read(record: PartRecord) -> tuple[Ints, tuple[list[str], Ints]]:
        return _labels(cache, record, split, by=by, origins=sources or PlacesOfPart(record))

    codes: dict[str, int] = {}
    for begin, end, lengths, (found, numbers) in each_part(cache, manifest, read):
        for name in found:
            codes.setdefault(name, len(codes))
        if len(codes) > MOST:
            raise UsageError(
                f"domain_by={by!r} of {cache.source.url} gives more than {MOST:,} domains: take "
                "a column of fewer values."
            )
        names += list(codes)[len(names) :]
        own = np.array([codes[name] for name in found], np.int32)[numbers]
        behind = begin + np.cumsum(lengths)
        starts = behind - lengths
        if behind[-1] < end:
            own, starts = np.append(own, np.int32(PADDING)), np.append(starts, behind[-1])
        changes = np.flatnonzero(np.diff(own, prepend=own[:1] + 1))
        yield starts[changes], own[changes]


def _labels(
    cache: ShardCache,
    record: PartRecord,
    split: Split,
    *,
    by: str,
    origins: PlacesOfPart | PlacesOfSources,
) -> tuple[Ints, tuple[list[str], Ints]]:
    """Tokens of a part's documents, the names of their domains, and which of these each has."""
    folders: list[str] = []
    if by == FOLDER:
        folders = [url.rpartition("/")[0] for url, _ in origins.files()]
        if len(set(folders)) == 1:  # no need to look at documents
            tokens = np.array([record.splits[split].tokens])
            return tokens, (folders[:1], np.zeros(1, np.int64))
    names: dict[str, int] = {}
    numbers: list[Ints] = [np.empty(0, np.int64)]
    lengths: list[Ints] = [np.empty(0, np.int64)]
    for documents in rows_of(cache, record):
        chosen = documents.of(split)
        lengths.append(documents.tokens[chosen] + 1)
        if by == FOLDER:
            number = _numbers_of_files(origins, documents)[chosen]
            found = folders
        else:
            column = documents.values[by.removeprefix(COLUMN)].filter(pa.array(chosen))
            number, found = _numbers_of_values(column)
        own = np.array([names.setdefault(name, len(names)) for name in found], np.int64)
        numbers.append(own[number])
    return np.concatenate(lengths), (list(names), np.concatenate(numbers))


def _numbers_of_files(origins: PlacesOfPart | PlacesOfSources, documents: DocumentRows) -> Ints:
    sources = documents.sources
    if sources is None:
        sources = np.zeros(len(documents.rows), np.int64)
    return origins.numbered(documents.rows, sources)[0]


def _numbers_of_values(column: pa.Array) -> tuple[Ints, list[str]]:
    """The distinct values of a column as words, and which each row has: (rows,)."""
    encoded = column.dictionary_encode(null_encoding="encode")
    numbers: Ints = np.asarray(encoded.indices).astype(np.int64)
    return numbers, [_word(value) for value in encoded.dictionary.to_pylist()]


def _word(value: str | float | bool | None) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
