"""A dataloader for torchtitan."""

import json
from collections.abc import Iterator
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader


class ShardmillDataLoader(BaseDataLoader):
    def __init__(
        self, data: str, *, dp_rank: int, dp_world_size: int, global_batch: int, seq_len: int
    ) -> None:
        dataset = StreamingTokenDataset(
            local=data,
            global_batch=global_batch,
            sequence_length=seq_len,
            shuffle=True,
            extras=["targets"],
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
        )
        self.loader = StreamingTokenLoader(dataset)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:  # epoch after epoch: torchtitan counts steps
            for batch in self.loader:
                yield {"input": batch["tokens"]}, batch["targets"]

    def state_dict(self) -> dict[str, Any]:
        return {"loader": json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            self.loader.load_state_dict(json.loads(state_dict["loader"]))
