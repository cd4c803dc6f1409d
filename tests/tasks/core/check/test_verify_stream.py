"""The cut of a token stream into documents against a slow one."""

import random

import numpy as np

from tasks.core.check.part import cut

EOT = 9
LENGTH = 4


def slow(ids: list[int]) -> tuple[list[int], int, bool, bool]:
    """Lengths of documents, padding, whether an end follows an end inside, whether it ends open."""
    open_end = ids[-1] != EOT
    padding = 0
    while not open_end and padding + 1 < len(ids) and ids[-padding - 2] == EOT:
        padding += 1
    if not open_end and padding + 1 == len(ids):  # nothing but ends
        padding += 1
    lengths, inside, length = [], False, 0
    for id_ in ids[: len(ids) - padding]:
        if id_ != EOT:
            length += 1
            continue
        inside |= length == 0
        if length:
            lengths.append(length)
        length = 0
    return lengths, padding, inside, open_end


def test_it_sees_what_a_slow_one_sees() -> None:
    rng = random.Random(3)
    seen = set()
    for _ in range(5000):
        count = rng.randint(1, 9) * LENGTH
        ids = rng.choices([1, EOT], [rng.choice([1, 4]), 1], k=count)
        lengths, padding, inside, open_end = slow(ids)
        stream = cut(np.flatnonzero(np.array(ids) == EOT), count, LENGTH)
        words = " ".join(problem for _, problem in stream.problems)
        assert (stream.lengths.tolist(), stream.padding) == (lengths, padding), ids
        assert ("follows another" in words) == inside, ids
        assert ("does not end" in words) == open_end, ids
        assert ("ids of padding" in words) == (padding >= LENGTH), ids
        seen.add((inside, open_end, padding >= LENGTH))
    assert len(seen) >= 5
