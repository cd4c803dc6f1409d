"""The samples of a chain do not depend on the lengths of blocks, even after a resume."""

import json
from collections.abc import Callable
from functools import partial
from itertools import cycle
from random import Random
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.transforms import CheckpointableDataset, interleave_datasets
from streaming_ext.transforms.flow import Input
from streaming_ext.transforms.steps import last_order, slots_drawn
from tests.streaming_ext.transforms.chains import plain
from tests.streaming_ext.transforms.cuts import Cuts, sample

Chain = CheckpointableDataset


class _Step(NamedTuple):
    """A step of a chain, and a loop over all samples that does the same."""

    chain: Callable[[Chain], Chain]
    model: Callable[[list[Any]], list[Any]]


def first_token(sample: Any) -> dict[str, Any]:
    tokens = [int(token) for token in sample["input_ids"]]
    return {**sample, "input_ids": [*tokens, 7, *tokens[:1]]}


def is_kept(sample: Any) -> bool:
    return int(sum(sample["input_ids"])) % 3 != 0


def kept_alone(sample: Any) -> Any:
    return first_token(sample) if is_kept(sample) else None


def flat(samples: list[Any]) -> list[int]:
    return [token for sample in samples for token in sample["input_ids"]]


def rows(tokens: list[int], length: int) -> list[Any]:
    starts = range(0, len(tokens) - length + 1, length)
    return [{"input_ids": tokens[at : at + length]} for at in starts]


def cut(sample: Any, length: int) -> list[Any]:
    tokens = sample["input_ids"]
    return [{"input_ids": tokens[at : at + length]} for at in range(0, len(tokens), length)]


def packed_by_hand(samples: list[Any], length: int, *, discard: bool) -> list[Any]:
    found: list[list[int]] = []
    for tokens in (one["input_ids"] for one in samples):
        if not tokens or (discard and len(tokens) > length):
            continue
        if found and len(found[-1]) + len(tokens) <= length:
            found[-1] += tokens
        else:
            found.append([*tokens])
    return [{"input_ids": tokens[:length]} for tokens in found]


def shuffled_by_hand(samples: list[Any], slots: int) -> list[Any]:
    found: list[Any] = []
    buffer = samples[:slots]
    drawn = slots_drawn(42, slots, 0, max(0, len(samples) - slots)).tolist()
    for slot, one in zip(drawn, samples[slots:], strict=True):
        found.append(buffer[slot])
        buffer[slot] = one
    return found + [buffer[slot] for slot in last_order(42, len(buffer)).tolist()]


TURNS = [0, 1, 0]


def in_turns(samples: list[Any]) -> list[Any]:
    """Take two samples of one for each of the other, by `TURNS`, until one is at its end."""
    one, two = iter(samples), iter(samples[1::2])
    found = []
    for turn in cycle(TURNS):
        sample = next(two if turn else one, None)
        if sample is None:
            return found
        found.append(sample)
    return found


def threads(number: int) -> dict[str, Any]:
    return {"executor_type": "thread", "max_workers": 2, "prefetch_factor": number}


def ids_of_tokens(samples: Any) -> Any:
    return plain({"input_ids": flat([plain(sample) for sample in samples])})


def of_seven(samples: list[Any]) -> list[Any]:
    return [ids_of_tokens(samples[at : at + 7]) for at in range(0, len(samples), 7)]


def merged(batch: Any) -> Any:
    return {"input_ids": batch["input_ids"].flatten().tolist()}


def rows_of_seven(samples: list[Any]) -> list[Any]:
    return of_seven(rows(flat(samples), 1))


STEPS = {
    "map": _Step(lambda d: d.map(first_token), lambda s: [first_token(one) for one in s]),
    "filter": _Step(lambda d: d.filter(is_kept), lambda s: [one for one in s if is_kept(one)]),
    "filter_map": _Step(
        lambda d: d.filter_map(kept_alone),
        lambda s: [first_token(one) for one in s if is_kept(one)],
    ),
    "parallel_filter_map": _Step(
        lambda d: d.parallel_filter_map(kept_alone, **threads(300)),
        lambda s: [first_token(one) for one in s if is_kept(one)],
    ),
    "take": _Step(lambda d: d.take(4_500), lambda s: s[:4_500]),
    "stride": _Step(lambda d: d.stride(3, 2), lambda s: s[2::3]),
    "enumerate": _Step(
        lambda d: d.enumerate("k"), lambda s: [{**one, "k": n} for n, one in enumerate(s)]
    ),
    "repeat": _Step(lambda d: d.repeat(2), lambda s: s * 2),
    "cache": _Step(lambda d: d.cache(), lambda s: s),
    "shuffle": _Step(lambda d: d.shuffle(5), partial(shuffled_by_hand, slots=5)),
    "shuffle long": _Step(lambda d: d.shuffle(4_100), partial(shuffled_by_hand, slots=4_100)),
    "chunk": _Step(
        lambda d: d.chunk(2, drop_remainder=False), lambda s: [r for one in s for r in cut(one, 2)]
    ),
    "chunk whole": _Step(
        lambda d: d.chunk(3),
        lambda s: [r for one in s for r in cut(one, 3) if len(r["input_ids"]) == 3],
    ),
    "concat_chunk": _Step(lambda d: d.concat_chunk(3), lambda s: rows(flat(s), 3)),
    "pack_chunk": _Step(
        lambda d: d.pack_chunk(3, ["input_ids"]), partial(packed_by_hand, length=3, discard=False)
    ),
    "pack_chunk discard": _Step(
        lambda d: d.pack_chunk(3, ["input_ids"], discard_long_samples=True),
        partial(packed_by_hand, length=3, discard=True),
    ),
    "add_bos_eos": _Step(
        lambda d: d.add_bos_eos(None, 9),
        lambda s: [{**one, "input_ids": [*one["input_ids"], 9]} for one in s],
    ),
    "interleave": _Step(
        lambda d: interleave_datasets([d, d.stride(2, 1)], [2, 1], chunk_size=3), in_turns
    ),
    "concat": _Step(lambda d: d + d.take(3), lambda s: s + s[:3]),
    "batch": _Step(lambda d: d.batch(7, ids_of_tokens), of_seven),
    "batch of rows": _Step(lambda d: d.concat_chunk(1).batch(7).map(merged), rows_of_seven),
}


@settings(max_examples=25, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
    count=st.one_of(st.integers(0, 60), st.integers(4_000, 9_000)),
    seed=st.integers(0, 2**32),
    at=st.floats(0, 1),
)
def test_blocks_change_nothing(names, count, seed, at) -> None:
    """Blocks of random chains are cut anywhere between steps, and reads take random numbers."""
    cuts, draw = Cuts(seed), Random(seed)
    wanted = [sample(number) for number in range(count)]
    chain = cuts.numbers(count)
    for name in names:
        chain, wanted = cuts.of(STEPS[name].chain(chain)), STEPS[name].model(wanted)
    wanted = [plain(one) for one in wanted]

    def taken(state: Any, most: int) -> tuple[list[Any], Any]:
        with Input(chain.open, (0, 1), state) as source:
            found = []
            while len(found) < most:
                some = min(most - len(found), draw.choice([1, 5, 1024, 4096, 7000]))
                source.has(some)
                block = source.use(some)
                if not len(block):
                    break
                found.extend(plain(one) for one in block.samples)
            return found, json.loads(json.dumps(source.state()))

    first, state = taken(None, int(at * len(wanted)))
    rest, end = taken(state, len(wanted) + 1)
    assert first + rest == wanted
    assert taken(end, 1)[0] == []
