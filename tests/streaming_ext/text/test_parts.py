"""The spans of each part: by hand, and for any sizes."""

from itertools import pairwise, zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.text.parts import Part, arrange
from streaming_ext.text.sources import SourceFile

Spans = list[list[tuple[int, tuple[int, int] | None]]]


def files(*sizes: int, prefix: str = "/") -> list[SourceFile]:
    return [SourceFile(url=f"{prefix}{n:03}", size=size) for n, size in enumerate(sizes)]


def spans_of(parts: tuple[Part, ...]) -> Spans:
    assert [part.number for part in parts] == list(range(len(parts)))
    return [[(int(p.source.url[-3:]), p.span) for p in part.spans] for part in parts]


@pytest.mark.parametrize(
    ("sizes", "least", "expected"),
    [
        (
            (5, 1, 1, 1, 12),
            2,
            [
                [(0, (0, 2))],
                [(0, (2, 5))],
                [(1, None), (2, None)],
                [(3, None)],
                [(4, (0, 4))],
                [(4, (4, 8))],
                [(4, (8, 12))],
            ],
        ),
        ((4, 5, 3), 0, [[(0, None)], [(1, (0, 2))], [(1, (2, 5))], [(2, None)]]),
        ((0, 0, 3), 0, [[(0, None)], [(1, None)], [(2, None)]]),
    ],
    ids=["cut and joined", "a file of exactly the part size is one part", "a part a file"],
)
def test_by_hand(sizes: tuple[int, ...], least: int, expected: Spans) -> None:
    parts = arrange(files(*sizes), part_size=4, min_part_size=least, may_be_cut=lambda _: True)
    assert spans_of(parts) == expected


def test_what_cannot_be_entered_and_what_lies_elsewhere() -> None:
    sources = files(9, 9)
    assert spans_of(arrange(sources, part_size=4, may_be_cut=sources[1].__eq__)) == [
        [(0, None)],
        [(1, (0, 3))],
        [(1, (3, 6))],
        [(1, (6, 9))],
    ]
    sources = [*files(0, 1, 0, 0), *files(1, 1, prefix="s3://b/")]
    assert spans_of(arrange(sources, part_size=9, min_part_size=9)) == [
        [(0, None), (1, None), (2, None), (3, None)],
        [(0, None), (1, None)],
    ]


@given(
    sizes=st.lists(st.integers(0, 60), max_size=30),
    part_size=st.integers(1, 40),
    fraction=st.floats(0, 1),
    cuttable=st.sets(st.integers(0, 29)),
)
def test_every_byte_once_and_in_order(
    sizes: list[int], part_size: int, fraction: float, cuttable: set[int]
) -> None:
    sources, least = files(*sizes), int(fraction * part_size)
    may = {source for number, source in enumerate(sources) if number in cuttable}
    parts = arrange(sources, part_size=part_size, min_part_size=least, may_be_cut=may.__contains__)
    spans = [span for part in parts for span in part.spans]
    held = [(p.source, p.span or (0, p.source.size)) for p in spans]
    assert list(dict.fromkeys(source for source, _ in held)) == sources
    for source in sources:
        spans = [span for of, span in held if of == source]
        assert (spans[0][0], spans[-1][1]) == (0, source.size)
        assert all(before[1] == after[0] for before, after in pairwise(spans))
    for part, after in zip_longest(parts, parts[1:]):
        are_files = all(span.span is None for span in part.spans)
        assert part.size <= part_size or len(part.spans) == 1
        assert are_files or len(part.spans) == 1
        if are_files and part.size < least and after is not None:  # there must be a reason to stop
            next_ = after.spans[0]
            assert next_.span is not None or part.size + next_.size > part_size
