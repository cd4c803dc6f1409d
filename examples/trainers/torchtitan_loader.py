"""A dataloader for torchtitan 0.3, and for its loader of August 2026, which is built on Grain."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader

try:
    from torchtitan.components.data.loader import BaseDataLoader
except ImportError:  # torchtitan 0.3
    from torchtitan.components.dataloader import BaseDataLoader


class ShardmillDataLoader(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        data: str = ""

    def __init__(self, config: Config, *, dp_rank: int, dp_world_size: int, **run: Any) -> None:
        # torchtitan 0.3 takes rows of `seq_len` tokens; the newer one takes them laid end to end.
        self.end_to_end = "num_tokens_per_batch" in run
        length = run["max_context_length" if self.end_to_end else "seq_len"]
        rows = run["num_tokens_per_batch"] // length if self.end_to_end else run["local_batch_size"]
        dataset = StreamingTokenDataset(
            local=config.data,
            batch_size=rows,
            sequence_length=length,
            shuffle=True,
            extras=["targets", "position_ids"],
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
        )
        self.loader = StreamingTokenLoader(dataset)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:  # epoch after epoch: torchtitan counts steps
            for batch in self.loader:
                found = [batch["tokens"], batch["position_ids"].long(), batch["targets"]]
                if self.end_to_end:
                    found = [each.flatten() for each in found]
                tokens, positions, targets = found
                yield {"input": tokens, "positions": positions}, targets

    def state_dict(self) -> dict[str, Any]:
        return {"loader": json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            self.loader.load_state_dict(json.loads(state_dict["loader"]))
