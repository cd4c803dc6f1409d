"""Shard a folder of Parquet files, read batches, and resume from a saved state.

python examples/shard_and_train.py SOURCES OUTPUT TOKENIZER
"""

import sys
import tempfile

import shardmill  # noqa: F401 - before `flows` and `tasks`, of which your folder may have its own
from flows.commands.outputs import shard
from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from tasks.core.config import ShardConfig


def loader(dataset: str, cache: str) -> StreamingTokenLoader:
    """Batches of this dataset, in the same order each time."""
    tokens = StreamingTokenDataset(
        remote=dataset, local=cache, batch_size=4, sequence_length=128, shuffle=True
    )
    return StreamingTokenLoader(tokens)


def main() -> None:
    """Shard, read three batches, and read the third again from the state after two."""
    sources, output, tokenizer = sys.argv[1:]
    config = ShardConfig(
        sources=(sources,), output=output, tokenizer=tokenizer, pattern="gpt2", workers=2
    )
    if code := shard(config):  # with the configured server, or one of its own
        sys.exit(code)
    with tempfile.TemporaryDirectory() as cache:
        first = loader(output, cache)
        batches = iter(first)
        next(batches)
        next(batches)
        state = first.state_dict()
        third = next(batches)["tokens"]

        again = loader(output, cache)
        again.load_state_dict(state)
        resumed = next(iter(again))["tokens"]
    print("third batch", tuple(third.shape), "the same after a resume:", third.equal(resumed))


if __name__ == "__main__":
    main()
