"""`get_batch` for nanoGPT's train.py."""

from collections.abc import Callable, Iterator

import torch

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader


def loader_of(data: str, batch_size: int, block_size: int) -> StreamingTokenLoader:
    dataset = StreamingTokenDataset(
        local=data,
        batch_size=batch_size,
        sequence_length=block_size,
        shuffle=True,
        extras=["targets"],
    )
    return StreamingTokenLoader(dataset, pin_memory=torch.cuda.is_available())


def endless(loader: StreamingTokenLoader) -> Iterator[dict[str, torch.Tensor]]:
    while True:
        yield from loader


def batch_getter(
    loader: StreamingTokenLoader, device: str
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    batches = endless(loader)

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        batch = next(batches)
        x = batch["tokens"].to(device, non_blocking=True)
        y = batch["targets"].to(device, non_blocking=True)
        return x, y.masked_fill(y < 0, -1)

    return get_batch


# To save: checkpoint["loader"] = loader.state_dict().
# To resume: loader.load_state_dict(checkpoint["loader"]).
