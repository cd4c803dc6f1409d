"""Arguments: NumPy numbers give plain states, wrong ones are errors, amounts have units."""

import io
import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from streaming_ext import TokenStream
from streaming_ext.base.errors import NotADatasetError, UsageError
from streaming_ext.transforms import CheckpointableDataset, interleave_datasets

Chain = CheckpointableDataset
SAMPLES = [{"input_ids": [n] * 3} for n in range(30)]


def test_numbers_of_numpy_make_plain_states(load) -> None:
    plain = {
        "shuffle_seed": 5,
        "shuffle_block_size": 16,
        "batch_size": 4,
        "num_canonical_nodes": 2,
        "max_repeated_ngram": 3,
        "drop_last": True,
        "shuffle": True,
        "epoch_size": 40,
        "sequence_length": 8,
        "predownload": 9,
        "dp_rank": 0,
        "dp_world_size": 1,
    }
    loader = load(**{name: np.array(value)[()] for name, value in plain.items()})
    next(iter(loader))
    require_plain(loader.state_dict())
    again = load(**plain)
    next(iter(again))
    assert again.state_dict() == loader.state_dict()


def test_counts_of_numpy_make_plain_states(open_raw, load) -> None:
    loader = load()
    loader.skip(np.int64(3))
    require_plain(loader.state_dict())
    assert loader.step == 3
    dataset = open_raw(dp_rank=np.int64(1), dp_world_size=np.int64(2))
    batches = iter(DataLoader(dataset, batch_size=4))
    next(batches)
    require_plain(dataset.state_dict())
    alone = open_raw()
    next(iter(alone))
    require_plain(alone.state_dict(num_samples=np.int64(8)))


@pytest.mark.parametrize("wrong", [-1, 1.5, "4"])
def test_what_is_no_count(open_raw, load, wrong) -> None:
    with pytest.raises(UsageError, match="`steps` must be"):
        load().skip(wrong)
    with pytest.raises(UsageError, match="`num_samples` must be"):
        open_raw().state_dict(num_samples=wrong)


def require_plain(state: dict[str, Any]) -> None:
    """Check that a state survives JSON and torch.load(weights_only=True)."""
    assert json.loads(json.dumps(state)) == state
    saved = io.BytesIO()
    torch.save(state, saved)
    saved.seek(0)
    assert torch.load(saved, weights_only=True) == state


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"shuffle": "no"}, "`shuffle` must be True or False, got 'no'"),
        ({"download_retry": -1}, "`download_retry` must be at least 0, got -1"),
        ({"download_timeout": 0}, "`download_timeout` must be seconds above 0, got 0"),
        ({"download_timeout": float("nan")}, "`download_timeout` must be seconds above 0, got nan"),
        ({"batch_size": True}, "`batch_size` must be a whole number .*got True"),
        ({"predownload": 0}, "`predownload` must be at least 1, got 0"),
        ({"local": None}, "either streams"),
        ({"streams": [TokenStream(local="x")]}, "not both"),
        ({"remote": "s3://bucket/data", "local": None}, "give local= a folder"),
        ({"shuffle_block_size": 0}, "shuffle_block_size"),
        ({"sequence_length": -8}, "sequence_length"),
        (
            {"sequence_length": 10_000},
            "is 10,000 tokens, and split 'train' of .* has 4,680: less than",
        ),
        ({"split": "val"}, "`split` is 'val', and .* has 'holdout', 'train'. Name one"),
        ({"split": None}, "`split` is None, and .* has 'holdout', 'train'. Name one"),
        ({"extras": "label"}, "may name sequence_ids.*; got label"),
        ({"batch_size": 1000}, "less than one global batch of 1000"),
        ({"cache_limit": "1gx"}, "cache_limit"),
        ({"dp_world_size": 0}, "`dp_world_size` must be at least 1, got 0"),
        ({"dp_world_size": "1"}, "`dp_world_size` must be a whole number .*got '1'"),
        ({"dp_rank": 0.0}, "`dp_rank` must be a whole number .*got 0.0"),
        ({"cp_rank": "0", "cp_size": 2}, "`cp_rank` must be a whole number .*got '0'"),
        ({"dp_rank": None, "replication": 0}, "`replication` must be at least 1, got 0"),
    ],
)
def test_senseless_settings(open_raw, named, message) -> None:
    with pytest.raises(UsageError, match=message):
        open_raw(**named)


def test_a_split_that_a_plain_set_lacks(raw, open_raw, tmp_path) -> None:
    for name in ("dev", "test"):
        (tmp_path / name).mkdir()
        shutil.copy(raw.root / "train/index.json", tmp_path / name)
    with pytest.raises(UsageError, match="`split` is 'train', and .* has 'dev', 'test'. Name one"):
        open_raw(local=tmp_path)


def test_one_extra_is_one_name(open_raw) -> None:
    assert open_raw(extras="targets").batch_reader.names == {"targets"}


def test_no_dataset_in_the_folder(open_raw, tmp_path) -> None:
    with pytest.raises(NotADatasetError):
        open_raw(local=tmp_path)


def test_streams_take_numbers_of_numpy() -> None:
    stream = TokenStream(local="data", choose=np.int64(40))  # type: ignore[arg-type]
    assert type(stream.choose) is int
    half = TokenStream(local="data", repeat=np.float32(0.5))  # type: ignore[arg-type]
    assert type(half.repeat) is float


CHAINS: list[Any] = [
    lambda d, whole, true: (
        d.stride(whole(3), whole(1))
        .add_bos_eos(whole(1), whole(2))
        .shuffle(whole(4), seed=whole(5))
        .pad({"input_ids": whole(9)}, whole(6))
        .batch(whole(2), drop_last=true)
    ),
    lambda d, whole, true: d.chunk(whole(2), drop_remainder=true),
    lambda d, whole, true: d.pack_chunk(whole(4), ["input_ids"], discard_long_samples=true),
    lambda d, whole, true: interleave_datasets([d, d], [whole(2), whole(1)], whole(3)),
    lambda d, whole, true: Chain.from_sequence(
        SAMPLES, repeat=true, shuffle=true, shuffle_seed=whole(3)
    ).take(whole(40)),
    lambda d, whole, true: d.parallel_map(
        dict, max_workers=whole(1), prefetch_factor=whole(3), ordered=False, executor_type="thread"
    ),
]


@pytest.mark.parametrize("made", CHAINS)
def test_chains_take_numbers_of_numpy(made) -> None:
    def run(whole: Any, *, true: Any) -> tuple[list[str], Any]:
        chain = made(Chain.from_sequence(SAMPLES), whole, true)
        with chain.iter() as samples:
            found = [repr(next(samples)) for _ in range(2)]
            state = samples.state_dict()
            return found + [repr(sample) for sample in samples], state

    found, state = run(np.int64, true=np.bool_(True))
    require_plain({"state": json.loads(json.dumps(state))})
    assert (found, state) == run(int, true=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda d: d.take("20"), "`max_count` must be a whole number.*, got '20'"),
        (lambda d: d.batch(True), "`batch_size` must be a whole number.*, got True"),
        (lambda d: d.batch(2, drop_last="no"), "`drop_last` must be True or False, got 'no'"),
        (lambda d: d.shuffle(2, seed="x"), "`seed` must be a whole number.*, got 'x'"),
        (lambda d: d.pad({"input_ids": 0.5}, 4), "`input_ids` must be a whole number.*, got 0.5"),
        (lambda d: d.add_bos_eos("1", None), "`bos_token_id` must be a whole number"),
        (lambda d: interleave_datasets([d], ["1"]), "`weights` must be"),
        (lambda _: Chain.from_sequence([], repeat="no"), "`repeat` must be True or False"),
    ],
)
def test_wrong_kinds_of_a_chain(wrong, message) -> None:
    with pytest.raises(UsageError, match=message):
        wrong(Chain.from_sequence(SAMPLES))
