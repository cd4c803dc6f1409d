"""The state of a loader in torch's distributed checkpoint."""

import json
from typing import Any

import torch
from torch.distributed import checkpoint

from streaming_ext import StreamingTokenLoader


class LoaderState:
    """A loader as a `Stateful` of torch.distributed.checkpoint."""

    def __init__(self, loader: StreamingTokenLoader) -> None:
        self.loader = loader

    def state_dict(self) -> dict[str, Any]:
        return {"loader": json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(json.loads(state["loader"]))


def save(folder: str, model: torch.nn.Module, loader: StreamingTokenLoader) -> None:
    checkpoint.save(
        {"model": model.state_dict(), "data": LoaderState(loader)}, checkpoint_id=folder
    )


def load(folder: str, model: torch.nn.Module, loader: StreamingTokenLoader) -> None:
    weights = model.state_dict()
    checkpoint.load({"model": weights, "data": LoaderState(loader)}, checkpoint_id=folder)
    model.load_state_dict(weights)
