"""Dealing the parts of a run out into partitions of about the same size."""

import heapq
from collections.abc import Iterable, Sequence


def split_evenly(sizes: Sequence[int], parts: Iterable[int], count: int) -> list[tuple[int, ...]]:
    """Deal parts out into at most `count` partitions of about the same size, none of them empty.

    The largest goes first, each to the partition that has least (Graham's rule: no partition is
    larger than 4/3 of what is best possible).

    Args:
        sizes: in bytes, of all parts.
        parts: numbers of those that are to be dealt out.
        count: of partitions.
    """
    parts = sorted(parts, key=lambda part: (-sizes[part], part))
    partitions: list[list[int]] = [[] for _ in range(min(count, len(parts)))]
    least = [(0, 0, number) for number in range(len(partitions))]
    for part in parts:
        size, length, number = heapq.heappop(least)
        partitions[number].append(part)
        heapq.heappush(least, (size + sizes[part], length + 1, number))
    return [tuple(sorted(partition)) for partition in partitions]
