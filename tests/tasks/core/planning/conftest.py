"""A vocabulary, four sources, and an output for which runs plan."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from streaming_ext.format.layout import BUILD
from streaming_ext.store import Storage, open_storage
from streaming_ext.text.tokenizer.rank_file import rank_file_bytes
from tasks.core.config import ShardConfig
from tasks.core.shard.shard_build import ShardBuild
from tests.tasks.core.doubles import write_source
from tests.tasks.core.running import do_parts, make_plan, publish


@dataclass(frozen=True)
class Output:
    """An output, and the runs of one configuration on it."""

    config: ShardConfig
    storage: Storage

    def changed(self, **changes: Any) -> ShardConfig:
        return ShardConfig(**(self.config.model_dump() | changes))

    def plan(self, **changes: Any) -> ShardBuild:
        config = self.changed(**changes)
        return make_plan(config, self.storage)

    def do(self, parts: Iterable[int]) -> ShardBuild:
        """Make some parts, with a run that ends then."""
        plan = self.plan()
        do_parts(plan, self.storage, parts)
        return plan

    def complete(self) -> None:
        """Make the parts that are left, with a run that publishes."""
        plan = self.plan()
        do_parts(plan, self.storage)
        publish(plan, self.storage)

    def content(self) -> dict[str, bytes]:
        """Return all files except the mark of an unfinished run."""
        return {path: self.storage.read(path) for path in self.storage.list() if path != BUILD}


@pytest.fixture
def config(tmp_path) -> ShardConfig:
    """A configuration with a vocabulary of the 256 bytes."""
    ranks = tmp_path / "bytes.tiktoken"
    ranks.write_bytes(rank_file_bytes({bytes([byte]): byte for byte in range(256)}))
    for number in range(4):
        texts = [f"{number} {row}" for row in range(10)]
        write_source(tmp_path / f"sources/{number}.parquet", texts)
    return ShardConfig(
        sources=(str(tmp_path / "sources"),),
        output=str(tmp_path / "out"),
        tokenizer=str(ranks),
        pattern="gpt2",
        sequence_length=8,
        holdout_fraction=0.3,
        shard_size=1024,
        engine="reference",
        workers=1,
    )


@pytest.fixture
def output(config) -> Output:
    made = Output(config, open_storage(config.output))
    made.storage.create()
    return made
