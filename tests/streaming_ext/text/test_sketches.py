"""Sketches estimate the Jaccard similarity of sets of n-grams, and are the same everywhere."""

import numpy as np
import pytest

from streaming_ext.format.shuffled import key_range
from streaming_ext.format.spec import NearRule
from streaming_ext.text import sketches
from streaming_ext.text.sketches import Sketches, num_matches, sketch_keys, sketches_of

RULE = NearRule(similarity=0.8, bands=14, rows=8, ngram=5)


def sketched(*documents: list[int] | np.ndarray, rule: NearRule = RULE) -> Sketches:
    """Return the sketches of documents of ids."""
    ends = np.cumsum([len(each) for each in documents])
    begins = ends - [len(each) for each in documents]
    stream = np.concatenate([np.asarray(each, np.uint16) for each in documents])
    return np.concatenate([*sketches_of(stream, begins, ends, rule)])


def ngrams(ids: np.ndarray, length: int) -> set[tuple[int, ...]]:
    return {tuple(ids[at : at + length].tolist()) for at in range(len(ids) - length + 1)}


@pytest.mark.parametrize("length", [30, 300, 3000])
def test_the_mean_of_estimates_is_the_jaccard_similarity(length) -> None:
    rng = np.random.default_rng(length)
    for changed in (0, 0.02, 0.05, 0.2):
        true, estimated = [], []
        for _ in range(100):
            own = rng.integers(0, 50_000, length)
            other = np.where(rng.random(length) < changed, rng.integers(0, 50_000, length), own)
            pair = sketched(own, other)
            one, two = ngrams(own, 5), ngrams(other, 5)
            true.append(len(one & two) / len(one | two))
            estimated.append(RULE.similarity_of(num_matches(pair[:1], pair[1:]))[0])
        error = np.array(estimated) - np.array(true)
        assert abs(error.mean()) < 0.02
        assert error.std() < 0.08
        assert changed or not error.any()


def test_each_document_alone_has_the_same_sketch(monkeypatch) -> None:
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 300, length) for length in (1, 4, 5, 6, 700, 2, 90, 5)]
    alone = np.concatenate([sketched(each) for each in documents])
    assert (sketched(*documents) == alone).all()
    monkeypatch.setattr(sketches, "_NGRAMS", 7)
    monkeypatch.setattr(sketches, "_DOCUMENTS", 3)
    assert (sketched(*documents) == alone).all()


def test_short_documents_are_similar_only_if_they_are_equal() -> None:
    found = sketched([1], [1, 2], [2, 1], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [0], [1])
    for number, each in enumerate(found[:-1]):
        matches = num_matches(found, each[None])
        assert (matches == RULE.bins).nonzero()[0].tolist() == ([0, 7] if not number else [number])
        assert (np.sort(matches)[: -2 if not number else -1] < 8).all()


def test_the_same_on_every_machine() -> None:
    found = sketched(np.arange(100) % 37, [5, 5], rule=RULE)
    assert found[:, :8].tolist() == [
        [107, 91, 60, 2, 34, 172, 177, 13],
        [4, 74, 147, 235, 24, 198, 38, 213],
    ]
    assert sketch_keys(found, RULE)[:2].tolist() == [
        [1034673377853118948, 126145307098481702],
        [2319350828559160561, 2169316498081581568],
    ]


def test_keys_of_bands_have_ranges_of_their_own() -> None:
    rng = np.random.default_rng(2)
    rule = NearRule(similarity=0.5, bands=3, rows=5, ngram=2)
    found = sketched(*(rng.integers(0, 9, 40) for _ in range(500)), rule=rule)
    keys = sketch_keys(found, rule)
    for way, own in enumerate(keys):
        start, end = key_range(way, 4)
        assert start <= int(own.min()) < int(own.max()) < end
        bands = found if not way else found[:, (way - 1) * 5 : way * 5]
        groups = len(np.unique(bands, axis=0))
        assert len(np.unique(own)) == groups


def test_the_least_matches() -> None:
    assert RULE.least_matches == 90
    at, below = RULE.similarity_of(np.array([90, 89]))
    assert at >= 0.8 > below
    assert NearRule(similarity=1, bands=14, rows=8, ngram=5).least_matches == 112
