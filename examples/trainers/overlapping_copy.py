"""Copy the next batch to the GPU while training works on the current one."""

from collections.abc import Iterator
from typing import Any

import torch

from streaming_ext import StreamingTokenLoader


class OnDevice:
    """The batches of a loader on a device, copied one batch ahead of training."""

    def __init__(self, loader: StreamingTokenLoader, device: str) -> None:
        self.loader, self.device = loader, torch.device(device)
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.state = loader.state_dict()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.loader.load_state_dict(self.state)  # the loader may be one batch ahead
        batches = iter(self.loader)
        ahead = self.copied(next(batches, None))
        while ahead is not None:
            if self.stream is not None:
                torch.cuda.current_stream(self.device).wait_stream(self.stream)
            batch, self.state = ahead, self.loader.state_dict()
            ahead = self.copied(next(batches, None))
            yield batch

    def copied(self, batch: dict[str, Any] | None) -> dict[str, Any] | None:
        if batch is None:
            return None
        with torch.cuda.stream(self.stream):  # does nothing without a GPU
            moved = {
                name: value.to(self.device, non_blocking=True)
                if isinstance(value, torch.Tensor)
                else value
                for name, value in batch.items()
            }
        if self.stream is not None:
            for value in moved.values():
                if isinstance(value, torch.Tensor):
                    value.record_stream(torch.cuda.current_stream(self.device))
        return moved

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state
