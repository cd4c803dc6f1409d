"""The check of a token stream, block by block, against a slow one that looks at all of it."""

import random

import numpy as np
import pytest

from streaming_ext.dataset.spec import DatasetSpec, TokenizerIdentity
from tasks.core.verify import stream as verify_stream
from tasks.core.verify.stream import ExpectedLengths, StreamCheck

EOT = 9
LENGTH = 4
SPEC = DatasetSpec(
    text_column="text",
    sequence_length=LENGTH,
    holdout_fraction=0.0,
    holdout_seed=0,
    shard_size=4096,
    compression="none",
    tokenizer=TokenizerIdentity(
        kind="tiktoken", name="t", vocab_size=10, eot_id=EOT, eot_token="<|end|>", fingerprint="f"
    ),
)


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


@pytest.mark.parametrize("block", [1, 2, 3, 5, 64])
def test_it_sees_what_a_slow_one_sees(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_stream, "_BLOCK_TOKENS", block)
    rng = random.Random(block)
    seen = set()
    for _ in range(1500):
        shards = [rng.randint(1, 3) for _ in range(rng.randint(1, 3))]
        ids = rng.choices([1, EOT], [rng.choice([1, 4]), 1], k=sum(shards) * LENGTH)
        lengths, padding, inside, open_end = slow(ids)
        expected = lengths if rng.random() < 0.5 else [*lengths[:1], 99, *lengths[2:]]
        batches = [np.array(expected[i : i + 2], np.int64) for i in range(0, len(expected), 2)]
        stream = StreamCheck(SPEC, ExpectedLengths(iter(batches)))
        first = 0
        for number, samples in enumerate(shards):
            after = first + samples * LENGTH
            stream.add(f"shard {number}", np.array(ids[first:after], np.uint16).reshape(-1, LENGTH))
            first = after
        stream.finish()
        words = " ".join(problem for _, problem in stream.problems)
        assert (stream.documents, stream.padding) == (len(lengths), padding), ids
        assert stream.tokens == len(ids) - padding
        assert ("follows another" in words) == inside, ids
        assert ("does not end" in words) == open_end, ids
        assert ("ids of padding" in words) == (padding >= LENGTH), ids
        assert (stream.difference is not None) == (expected[: len(lengths)] != lengths), ids
        seen.add((inside, open_end, padding >= LENGTH, stream.difference is None))
    assert len(seen) >= 10


def test_an_id_beyond_the_vocabulary_is_placed() -> None:
    ids = np.full((3, LENGTH), 1, np.uint16)
    ids[1, 2], ids[2, 1], ids[-1, -1] = 10, 11, EOT
    stream = StreamCheck(SPEC, None)
    stream.add("a", ids)
    stream.finish()
    assert stream.problems == [("a", "sample 1, token 2: id 10, expected ids below 10")]


def test_a_stream_that_began_before_may_begin_with_an_end() -> None:
    for begun, problems in ((True, 0), (False, 1)):
        stream = StreamCheck(SPEC, None, begun=begun)
        stream.add("a", np.array([[EOT, 1, 1, EOT]], np.uint16))
        assert len(stream.problems) == problems
