"""A large `--shard-size`: memory for what there is to hold, and one plain error beyond that."""

import os
from pathlib import Path

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.rank_file import rank_file_bytes
from tasks.core.synthetic import make_documents
from tasks.core.workers.pool import WorkerPool
from tasks.core.workers.tokenize_part import TokenizeJob
from tests.tasks.core.doubles import make_spec, record_in, tokenize_job, write_source


@pytest.fixture
def job(tmp_path: Path) -> TokenizeJob:
    """Some 100 KB of text in shards of 2 GiB, a fifth of it held out."""
    ranks = tmp_path / "bytes.tiktoken"
    ranks.write_bytes(rank_file_bytes({bytes([byte]): byte for byte in range(256)}))
    load_tokenizer(str(ranks), pattern="gpt2").save(tmp_path / "saved")
    source = write_source(tmp_path / "source.parquet", make_documents(60, seed=4))
    spec = make_spec(shard_size=2 * 2**30, holdout_fraction=0.2, sequence_length=64)
    made = tokenize_job(source, tmp_path / "s", spec)
    return made.model_copy(update={"tokenizer_folder": str(tmp_path / "saved")})


def test_shards_of_two_gibibytes_take_what_there_is_to_hold(job: TokenizeJob) -> None:
    with WorkerPool(1) as pool:
        pool.run(job)
    splits = record_in(Path(job.scratch)).splits
    assert {name: len(split.shards) for name, split in splits.items()} == {"train": 1, "holdout": 1}


def test_what_does_not_fit_is_one_error_that_names_the_option(
    job: TokenizeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "SHARDMILL_WORKER_MEMORY", "120MiB")
    with (
        WorkerPool(1) as pool,
        pytest.raises(UsageError, match=r"--shard-size 2GiB does not") as e,
    ):
        pool.run(job)
    assert not e.value.transient  # so the task is not tried again
    assert "Lower --shard-size" in str(e.value)
