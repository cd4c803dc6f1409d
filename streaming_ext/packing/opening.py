"""Opening the packing plan of a split; where there is none, one process makes it for all."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, Final

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.dataset.hashing import content_hash
from streaming_ext.errors import CorruptDatasetError, UsageError
from streaming_ext.packing.documents import Documents, count_documents, documents_of
from streaming_ext.packing.plan import MAX_ROW, VERSION, PackingPlan, write_plan
from streaming_ext.packing.unit import RowPieces, pack_unit
from streaming_ext.shards.cache import ShardCache
from streaming_ext.shards.made_once import made_once

UNIT_DOCUMENTS: Final = 1 << 18  # packed among themselves
UNIT_TOKENS: Final = 1 << 30  # or fewer documents, where they are long
_KEY: Final = 17  # of the permutations: the plan of given lengths is always the same


def open_plan(
    cache: ShardCache,
    length: int,
    *,
    left_out: Documents | None = None,
    multiple: int = 1,
    maps: bool = True,
) -> PackingPlan:
    """The plan of a split for rows of `length` tokens.

    Args:
        cache: of the split.
        length: tokens a row.
        left_out: documents that no row holds.
        multiple: of tokens that each piece takes in its row.
        maps: whether the plan is mapped; else it is read into memory.

    Raises:
        UsageError: the dataset does not know its documents, or rows are too long.
        CorruptDatasetError: what the dataset says of its documents is missing or damaged.
        StorageError: the plan cannot be kept.
    """
    if length >= MAX_ROW:
        raise UsageError(f"`sequence_length` must be below {MAX_ROW} with packing, got {length}.")
    index = cache.index
    name = f"{index.split or 'shards'}-{index.index_hash[:16]}.best_fit-{VERSION}-{length}"
    if left_out is not None and len(left_out.starts):
        name += f"-without-{content_hash(np.sort(left_out.starts).tobytes())[:16]}"
    if multiple > 1:
        name += f"-of-{multiple}"
    name += ".plan"
    return made_once(
        cache.beside / name,
        what="The packing plan",
        opened=lambda path: PackingPlan(path, length=length, maps=maps),
        make=lambda file: _make(cache, file, length, left_out, multiple),
    )


def plan_units(
    documents: Iterable[Documents], *, count: int, tokens: int, length: int, multiple: int = 1
) -> Iterator[tuple[int, RowPieces]]:
    """First token and rows of each unit.

    Args:
        documents: all of a split, in order.
        count: how many there are.
        tokens: that they have together, about.
        length: of a row.
        multiple: see `open_plan`.
    """
    threads = min(4, os.cpu_count() or 1)
    waiting: deque[tuple[int, Future[RowPieces]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="shardmill-packing") as pool:
        for number, unit in enumerate(_cut(documents, count=count, tokens=tokens)):
            rows = pool.submit(
                pack_unit, *unit, length=length, key=_KEY + number, multiple=multiple
            )
            waiting.append((int(unit.starts[0]), rows))
            if len(waiting) > threads:
                origin, done = waiting.popleft()
                yield origin, done.result()
        for origin, done in waiting:
            yield origin, done.result()


def _cut(documents: Iterable[Documents], *, count: int, tokens: int) -> Iterator[Documents]:
    """The documents of each unit: as many in each, to within one."""
    units = max(1, round(count / UNIT_DOCUMENTS), -(-tokens // UNIT_TOKENS))
    ends = [count * (number + 1) // units for number in range(units)]
    held: list[Documents] = []
    seen = 0
    for some in documents:
        rest = some
        while ends and seen + len(rest.starts) >= ends[0]:
            inside = ends.pop(0) - seen
            held.append(Documents(rest.starts[:inside], rest.lengths[:inside]))
            if any(len(each.starts) for each in held):
                yield _joined(held)
            held, seen = [], seen + inside
            rest = Documents(rest.starts[inside:], rest.lengths[inside:])
        held.append(rest)
        seen += len(rest.starts)
    if seen != count:
        raise CorruptDatasetError(
            f"The tables of documents list {seen:,} documents, the manifest {count:,}. "
            "Run `shardmill verify` on the dataset."
        )


def _joined(pieces: list[Documents]) -> Documents:
    return Documents(
        np.concatenate([piece.starts for piece in pieces]),
        np.concatenate([piece.lengths for piece in pieces]),
    )


def _make(
    cache: ShardCache, file: BinaryIO, length: int, left_out: Documents | None, multiple: int
) -> None:
    documents, count = documents_of(cache), count_documents(cache)
    if left_out is not None:
        documents, count = _without(documents, left_out.starts), count - len(left_out.starts)
    units = plan_units(
        documents,
        count=count,
        tokens=int(cache.index.token_starts[-1]),
        length=length,
        multiple=multiple,
    )
    write_plan(file, units, length=length)


def _without(documents: Iterable[Documents], starts: Ints) -> Iterator[Documents]:
    """The documents that do not begin at any of `starts`."""
    for some in documents:
        kept = ~np.isin(some.starts, starts)
        yield Documents(some.starts[kept], some.lengths[kept])
