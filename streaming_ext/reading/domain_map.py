"""A map of domains: runs of tokens of one domain in a split's stream, looked up in a mapped file.

starts     int64 (runs,), first token of each run
codes      int32 (runs,), number of its domain, -1 for padding
directory  JSON: names of the domains, counts, the hash of what stands before
end        length of the directory, 8 bytes; its XXH3-128, 16 bytes

The domain of each document of a split: what it is called, and where it begins.
"""

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.format.layout import Split
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.provenance import (
    DocumentRows,
    PlacesOfPart,
    PlacesOfSources,
    read_provenance,
)
from streaming_ext.format.reading import listed_record, read_listed
from streaming_ext.format.schema import content_hash
from streaming_ext.format.shuffled import sources_of
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.documents import each_part
from streaming_ext.reading.made_once import map_file, write_directory

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
        try:
            data, told = map_file(path)
        except CorruptDatasetError as error:
            raise self._damaged(str(error)) from error
        runs = told["runs"]
        if told["version"] != VERSION or len(data) != 12 * runs:
            raise self._damaged(f"version {told['version']}, {runs} runs")
        if verify and content_hash(data.data) != told["xxh128"]:
            raise self._damaged("its content has another hash")
        self._starts = data[: 8 * runs].view("<i8")
        self._codes = data[8 * runs :].view("<i4")
        self.names = tuple(told["names"])
        self.tokens = int(told["tokens"])

    def __getstate__(self) -> dict[str, object]:
        """Another process maps the file itself."""
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open what this process's parent has verified."""
        self.__init__(**state, verify=False)  # type: ignore[misc]

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
        run = np.arange(len(span)) + np.repeat(first - np.cumsum(counts) + counts, counts)
        begins = np.maximum(self._starts[run], starts[span])
        ends = np.append(begins[1:], 0)
        last = np.cumsum(counts) - 1
        ends[last] = starts + lengths
        return span, self._codes[run], ends - begins

    def _damaged(self, cause: str) -> CorruptDatasetError:
        return CorruptDatasetError(
            f"The map of domains {self.path} is damaged: {cause}. Remove it: it is made again."
        )


FOLDER: Final = "folder"
COLUMN: Final = "column:"
NOTHING: Final = "(nothing)"  # of a document that has no value in the column
MOST: Final = 1 << 16  # domains; a count of each stands in the state


@dataclass(frozen=True, kw_only=True, slots=True)
class _Labels:
    """Documents of a part: what each is called, by number, and its tokens: (documents,)."""

    names: Sequence[str]
    numbers: Ints
    lengths: Ints


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
    manifest = _manifest_with(cache, by)
    sources = None
    if manifest.shuffled is not None and by == FOLDER:
        sources = PlacesOfSources(sources_of(read_listed(cache.source, manifest.shuffled.sources)))

    def read(split: Split, part: int) -> _Labels:
        return _labels(cache, manifest, split, part, by=by, sources=sources)

    codes: dict[str, int] = {}
    for begin, end, found in each_part(cache, read):
        for name in found.names:
            codes.setdefault(name, len(codes))
        if len(codes) > MOST:
            raise UsageError(
                f"domain_by={by!r} of {cache.source.url} gives more than {MOST:,} domains: take "
                "a column of fewer values."
            )
        names += list(codes)[len(names) :]
        total = int(found.lengths.sum())
        if not 0 <= end - begin - total < cache.index.sample_tokens:
            raise CorruptDatasetError(
                f"{cache.source.url}: the documents of a part have {total} tokens, its shards "
                f"{end - begin}. Run `shardmill verify` on it."
            )
        own = np.array([codes[name] for name in found.names], np.int32)[found.numbers]
        starts = begin + np.cumsum(found.lengths) - found.lengths
        if total < end - begin:
            own, starts = np.append(own, np.int32(PADDING)), np.append(starts, begin + total)
        changes = np.flatnonzero(np.diff(own, prepend=own[:1] + 1))
        yield starts[changes], own[changes]


def _manifest_with(cache: ShardCache, by: str) -> Manifest:
    manifest = cache.index.manifest
    if manifest is None:
        raise UsageError(
            f"domain_by= needs the lists of documents, which {cache.source.url} does not have. "
            "Make the dataset with `shardmill shard`, or leave domain_by out."
        )
    column, kept = by.removeprefix(COLUMN), manifest.spec.keep_columns
    if by != FOLDER and column not in kept:
        raise UsageError(
            f"{cache.source.url} did not keep the column {column!r}; it kept "
            f"{', '.join(kept) or 'none'}. Make it with --keep-columns {column}, or pass "
            f"domain_by={FOLDER!r}."
        )
    return manifest


def _labels(
    cache: ShardCache,
    manifest: Manifest,
    split: Split,
    part: int,
    *,
    by: str,
    sources: PlacesOfSources | None,
) -> _Labels:
    listed = manifest.parts[part].record
    where = f"{cache.source.url}/{listed.path}"
    record = listed_record(read_listed(cache.source, listed), manifest, part, where=where)
    places: PlacesOfPart | PlacesOfSources = sources or PlacesOfPart(record)
    folders: list[str] = []
    if by == FOLDER:
        folders = [url.rpartition("/")[0] for url, _ in places.files()]
        if len(set(folders)) == 1:  # no need to look at documents
            tokens = np.array([record.splits[split].tokens])
            return _Labels(names=folders[:1], numbers=np.zeros(1, np.int64), lengths=tokens)
    data = read_listed(cache.source, record.documents)
    names: dict[str, int] = {}
    numbers: list[Ints] = [np.empty(0, np.int64)]
    lengths: list[Ints] = [np.empty(0, np.int64)]
    try:
        for documents in read_provenance(data):
            chosen = documents.of(split)
            lengths.append(documents.tokens[chosen] + 1)
            if by == FOLDER:
                number = _numbers_of_files(places, documents)[chosen]
                found = folders
            else:
                column = documents.values[by.removeprefix(COLUMN)].filter(pa.array(chosen))
                number, found = _numbers_of_values(column)
            own = np.array([names.setdefault(name, len(names)) for name in found], np.int64)
            numbers.append(own[number])
    except (CorruptDatasetError, KeyError) as error:
        raise CorruptDatasetError(f"{cache.source.url}/{record.documents.path}: {error}") from error
    return _Labels(
        names=list(names), numbers=np.concatenate(numbers), lengths=np.concatenate(lengths)
    )


def _numbers_of_files(places: PlacesOfPart | PlacesOfSources, documents: DocumentRows) -> Ints:
    sources = documents.sources
    if sources is None:
        sources = np.zeros(len(documents.rows), np.int64)
    return places.numbered(documents.rows, sources)[0]


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
