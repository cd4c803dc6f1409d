"""The documents of a split in the order of its token stream: where each begins, and its length."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.format.layout import SPLITS, Split
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.provenance import DocumentRows, read_provenance
from streaming_ext.format.reading import listed_record, read_listed
from streaming_ext.format.record import PartRecord
from streaming_ext.reading.cache import ShardCache

Found = TypeVar("Found")
_AT_ONCE: Final = 8  # parts that are fetched ahead of their use


class Documents(NamedTuple):
    """Some consecutive documents: both of shape (documents,).

    Attributes:
        starts: first token of each in the split's stream.
        lengths: tokens of each, its end-of-text id counted.
    """

    starts: Ints
    lengths: Ints


def manifest_of(cache: ShardCache, option: str) -> tuple[Manifest, Split]:
    """The manifest of a dataset that lists its documents, and the split of a cache.

    Raises:
        UsageError: the dataset does not know its documents, which an option needs.
    """
    manifest = cache.index.manifest
    if manifest is None:
        raise UsageError(
            f"{option}= needs the lists of documents, which {cache.source.url} does not have. "
            f"Make the dataset with `shardmill shard`, or leave {option} out."
        )
    return manifest, next(split for split in SPLITS if split == cache.index.split)


def documents_of(cache: ShardCache) -> Iterator[Documents]:
    """All documents of a split, part by part.

    Raises:
        UsageError: the dataset does not know its documents.
        CorruptDatasetError: a record or table of documents is missing or damaged.
    """
    manifest, split = manifest_of(cache, "packing")

    def read(record: PartRecord) -> tuple[Ints, None]:
        lengths = [rows.tokens[rows.of(split)] + 1 for rows in rows_of(cache, record)]
        return np.concatenate([np.empty(0, np.int64), *lengths]), None

    for begin, _, lengths, _ in each_part(cache, manifest, read):
        yield Documents(begin + np.cumsum(lengths) - lengths, lengths)


def each_part(
    cache: ShardCache, manifest: Manifest, read: Callable[[PartRecord], tuple[Ints, Found]]
) -> Iterator[tuple[int, int, Ints, Found]]:
    """What is read of each part that has shards, some ahead of their use, in order.

    Args:
        cache: of a split.
        manifest: of its dataset.
        read: told the record of a part, gives the tokens of each of its documents in the split,
            end-of-text ids counted, and something else; called in threads.

    Yields:
        the first token of the part in the split's stream, the one behind it, and what was read.

    Raises:
        CorruptDatasetError: a record is missing or damaged, or contradicts the shards.
    """

    def read_part(part: int) -> tuple[Ints, Found]:
        listed = manifest.parts[part].record
        where = f"{cache.source.url}/{listed.path}"
        return read(listed_record(read_listed(cache.source, listed), manifest, part, where=where))

    if not cache.index.raw_names:
        return  # an empty split
    starts = cache.index.token_starts
    numbers = np.array([int(name.partition("/")[0]) for name in cache.index.raw_names], np.int64)
    parts, first = np.unique(numbers, return_index=True)  # of those that have shards
    ends = np.append(starts[first[1:]], starts[-1])
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="shardmill-documents") as pool:
        waiting: deque[Future[tuple[Ints, Found]]] = deque()
        todo = iter(parts.tolist())
        for begin, end in zip(starts[first].tolist(), ends.tolist(), strict=True):
            while len(waiting) < _AT_ONCE and (part := next(todo, None)) is not None:
                waiting.append(pool.submit(read_part, part))
            lengths, found = waiting.popleft().result()
            total = int(lengths.sum())
            if not 0 <= end - begin - total < cache.index.sample_tokens:
                raise CorruptDatasetError(
                    f"{cache.source.url}: the documents of a part have {total} tokens, its shards "
                    f"{end - begin}. Run `shardmill verify` on it."
                )
            yield begin, end, lengths, found


def rows_of(cache: ShardCache, record: PartRecord) -> Iterator[DocumentRows]:
    """The table of a part's documents, in bounded batches.

    Raises:
        CorruptDatasetError: it is missing or damaged.
    """
    data = read_listed(cache.source, record.documents)
    try:
        yield from read_provenance(data)
    except CorruptDatasetError as error:
        raise CorruptDatasetError(f"{cache.source.url}/{record.documents.path}: {error}") from error
