"""Best fit decreasing on histograms, compared with one that keeps every row in memory."""

import io

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.base.arrays import ranges
from streaming_ext.format.schema import content_hash
from streaming_ext.training.features.packing import pack_group, stable_argsort, write_plan

LENGTHS = st.integers(1, 40).flatmap(
    lambda length: st.tuples(
        st.just(length), st.lists(st.integers(1, 3 * length), min_size=1, max_size=40)
    )
)


def packed_one_by_one(sizes: list[int], length: int) -> list[list[int]]:
    """Put each document, the longest first, into the fullest row with room, or into a new one."""
    rows: list[list[int]] = []
    for size in sorted(sizes, reverse=True):
        rooms = [(length - sum(row), number) for number, row in enumerate(rows)]
        fitting = [each for each in rooms if each[0] >= size]
        if fitting:
            rows[min(fitting)[1]].append(size)
        else:
            rows.append([size])
    return rows


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.integers(0, 5), st.integers(0, 1000))
def test_a_group_is_best_fit_decreasing_and_cuts_long_documents_alone(case, key, origin) -> None:
    length, sizes = case
    lengths = np.array(sizes)
    starts = origin + np.cumsum(lengths) - lengths
    group = pack_group(starts, lengths, length=length, key=key)
    assert group.firsts[0] == 0
    assert group.firsts[-1] == len(group.starts)
    covered = ranges(group.starts, group.lengths)
    assert sorted(covered.tolist()) == list(range(origin, origin + sum(sizes)))
    filled = np.add.reduceat(group.lengths, group.firsts[:-1])
    documents = {int(a): int(n) for a, n in zip(starts, lengths, strict=True)}
    for start, size, begins, ends in zip(
        group.starts.tolist(), group.lengths.tolist(), group.begins, group.ends, strict=True
    ):
        first = max(a for a in documents if a <= start)
        assert begins == (start == first)
        assert ends == (start + size == first + documents[first])
        if documents[first] <= length:  # these are never cut
            assert (begins, ends) == (True, True)
        else:
            assert (start - first) % length == 0
            assert size == length or ends
    # Rows with the same room are interchangeable, so only their sizes are compared.
    rests = [size % length for size in sizes if size % length]
    full = [length] * sum(size // length for size in sizes)
    expected = [*map(sum, packed_one_by_one(rests, length)), *full]
    assert sorted(filled.tolist()) == sorted(expected)


def test_the_plan_of_given_lengths_never_changes() -> None:
    """Training that resumes finds each row where it was."""
    numbers = np.arange(5000)
    lengths = 2 + numbers * numbers % 977 + numbers % 7 * 300
    starts = np.cumsum(lengths) - lengths
    assert (lengths > 1024).any()
    group = pack_group(starts, lengths, length=1024, key=17)
    file = io.BytesIO()
    write_plan(file, [(0, group)], length=1024)
    assert content_hash(file.getvalue()) == "171821746b318f6d43ab1b71cc118254"


def test_entries_are_found_alike_where_words_are_too_short_for_them() -> None:
    values = np.random.default_rng(0).integers(0, 50, 1000).astype(np.uint64)
    assert stable_argsort(values, bits=6).tolist() == stable_argsort(values, bits=60).tolist()
    assert stable_argsort(values, bits=6).tolist() == np.argsort(values, kind="stable").tolist()
