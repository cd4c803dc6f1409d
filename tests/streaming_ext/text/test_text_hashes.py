"""The side of a document hangs on its text and the seed, and on nothing else."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.text.text_hashes import document_hashes, held_out

SEEDS = st.integers(0, 2**64 - 1)


def arrow(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


def sides(texts: list[str], *, seed: int, fraction: float) -> list[bool]:
    found: list[bool] = held_out(
        document_hashes(arrow(texts), seed=seed), fraction=fraction
    ).tolist()
    return found


# Published with xxHash and python-xxhash.
@pytest.mark.parametrize(
    ("text", "seed", "expected"),
    [
        ("", 0, 0x2D06800538D394C2),
        ("a", 0, 16629034431890738719),
        ("a", 1, 15201566949650179872),
        ("a", 2**64 - 1, 4875116479388997462),
    ],
)
def test_published_vectors(text: str, seed: int, expected: int) -> None:
    hashes = document_hashes(arrow(["before", text, "after"]), seed=seed)
    assert hashes.dtype == np.uint64
    assert hashes.shape == (3,)
    assert int(hashes[1]) == expected


@pytest.mark.parametrize(
    ("fraction", "last_inside"),
    [
        (0.5, 2**63 - 1),
        (0.25, 2**62 - 1),
        (2.0**-64, 0),
        (1 - 2.0**-53, 2**64 - 2**11 - 1),
    ],
)
def test_the_threshold_is_exact(fraction: float, last_inside: int) -> None:
    hashes = np.array([last_inside, last_inside + 1], np.uint64)
    assert held_out(hashes, fraction=fraction).tolist() == [True, False]


def test_nothing_is_held_out_at_zero() -> None:
    assert held_out(np.array([0, 2**64 - 1], np.uint64), fraction=0.0).tolist() == [False, False]


@given(texts=st.lists(st.text(max_size=20), min_size=1), seed=SEEDS, data=st.data())
def test_neither_batches_nor_order_matter(texts: list[str], seed: int, data: st.DataObject) -> None:
    whole = document_hashes(arrow(texts), seed=seed).tolist()
    order = data.draw(st.permutations(range(len(texts))))
    cut = data.draw(st.integers(0, len(texts)))
    pieces = [
        document_hashes(arrow([texts[i] for i in part]), seed=seed).tolist()
        for part in (order[:cut], order[cut:])
    ]
    assert [*pieces[0], *pieces[1]] == [whole[i] for i in order]


@given(texts=st.lists(st.text(max_size=20), min_size=2), data=st.data())
def test_slices_with_an_offset(texts: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(texts)))
    length = data.draw(st.integers(0, len(texts) - start))
    piece = arrow(texts).slice(start, length)
    expected = document_hashes(arrow(texts), seed=5)[start : start + length]
    np.testing.assert_array_equal(document_hashes(piece, seed=5), expected)


@given(text=st.text(), seed=SEEDS, fraction=st.floats(0, 1, exclude_max=True))
def test_duplicates_are_on_the_same_side(text: str, seed: int, fraction: float) -> None:
    assert len(set(sides([text, "other", text, text], seed=seed, fraction=fraction)[::2])) == 1


@given(
    seed=SEEDS,
    fractions=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2).map(sorted),
)
def test_a_larger_fraction_holds_out_a_superset(seed: int, fractions: list[float]) -> None:
    texts = [str(number) for number in range(200)]
    smaller, larger = (np.array(sides(texts, seed=seed, fraction=f)) for f in fractions)
    assert (larger | ~smaller).all()


@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.3, 0.9])
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_the_share_is_near_the_fraction(fraction: float, seed: int) -> None:
    count = 40_000
    share = sum(sides([f"document {n}" for n in range(count)], seed=seed, fraction=fraction))
    deviation = (count * fraction * (1 - fraction)) ** 0.5
    assert abs(share - count * fraction) < 5 * deviation
    assert share > 0


def test_another_seed_holds_out_others() -> None:
    texts = [str(number) for number in range(2000)]
    one, other = (np.array(sides(texts, seed=seed, fraction=0.5)) for seed in (0, 1))
    assert 850 < int((one & other).sum() + (~one & ~other).sum()) < 1150  # as two coins agree


def test_no_documents() -> None:
    assert document_hashes(arrow([]), seed=0).shape == (0,)
    assert sides([], seed=0, fraction=0.5) == []


def test_no_unicode_normalization() -> None:
    composed, decomposed = document_hashes(arrow(["\u00e9", "e\u0301"]), seed=0).tolist()
    assert composed != decomposed
