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
from streaming_ext.format.provenance import lengths_of
from streaming_ext.format.reading import listed_record, read_listed
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


def count_documents(cache: ShardCache) -> int:
    """Documents of a split, as the manifest says.

    Raises:
        UsageError: the dataset does not know its documents.
    """
    manifest, split = _known(cache)
    return manifest.splits[split].documents


def documents_of(cache: ShardCache) -> Iterator[Documents]:
    """All documents of a split, part by part.

    Raises:
        UsageError: the dataset does not know its documents.
        CorruptDatasetError: a record or table of documents is missing or damaged.
    """
    manifest, _ = _known(cache)

    def read(split: Split, part: int) -> Ints:
        return _lengths(cache, manifest, split, part)

    for begin, end, lengths in each_part(cache, read):
        behind = begin + np.cumsum(lengths)
        if not len(lengths) or not 0 <= end - behind[-1] < cache.index.sample_tokens:
            raise CorruptDatasetError(
                f"{cache.source.url}: the documents of a part have {int(lengths.sum())} "
                f"tokens, its shards {end - begin}. Run `shardmill verify` on it."
            )
        yield Documents(behind - lengths, lengths)


def each_part(
    cache: ShardCache, read: Callable[[Split, int], Found]
) -> Iterator[tuple[int, int, Found]]:
    """What is read of each part that has shards, some ahead of their use, in order.

    Args:
        cache: of a split of a dataset that has a manifest.
        read: told the split and the number of a part; called in threads.

    Yields:
        the first token of the part in the split's stream, the one behind it, and what was read.
    """
    if not cache.index.raw_names:
        return  # an empty split
    split = next(split for split in SPLITS if split == cache.index.split)
    starts = cache.index.token_starts
    numbers = np.array([int(name.partition("/")[0]) for name in cache.index.raw_names], np.int64)
    parts, first = np.unique(numbers, return_index=True)  # of those that have shards
    ends = np.append(starts[first[1:]], starts[-1])
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="shardmill-documents") as pool:
        waiting: deque[Future[Found]] = deque()
        todo = iter(parts.tolist())
        for begin, end in zip(starts[first].tolist(), ends.tolist(), strict=True):
            while len(waiting) < _AT_ONCE and (part := next(todo, None)) is not None:
                waiting.append(pool.submit(read, split, part))
            yield begin, end, waiting.popleft().result()


def _known(cache: ShardCache) -> tuple[Manifest, Split]:
    manifest = cache.index.manifest
    split = next((split for split in SPLITS if split == cache.index.split), None)
    if manifest is None or split is None:
        raise UsageError(
            f"packing= needs the lengths of documents, which {cache.source.url} does not say. Make "
            "the dataset with `shardmill shard`, or leave packing out."
        )
    return manifest, split


def _lengths(cache: ShardCache, manifest: Manifest, split: Split, part: int) -> Ints:
    listed = manifest.parts[part].record
    where = f"{cache.source.url}/{listed.path}"
    record = listed_record(read_listed(cache.source, listed), manifest, part, where=where)
    data = read_listed(cache.source, record.documents)
    try:
        lengths = [tokens + 1 for tokens in lengths_of(data, split)]
    except CorruptDatasetError as error:
        raise CorruptDatasetError(f"{cache.source.url}/{record.documents.path}: {error}") from error
    return np.concatenate([np.empty(0, np.int64), *lengths])
