"""Micro batches for Megatron-LM's `--dataloader-type external`."""

from collections.abc import Iterator

import torch

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader


def micro_batches(loader: StreamingTokenLoader, size: int) -> Iterator[dict[str, torch.Tensor]]:
    while True:
        for batch in loader:
            targets = batch["targets"]
            whole = {
                "tokens": batch["tokens"],
                "labels": targets.clamp(min=0),
                "loss_mask": (targets >= 0).float(),
                "position_ids": batch["position_ids"].long(),
            }
            for first in range(0, len(targets), size):
                yield {name: value[first : first + size] for name, value in whole.items()}


def train_iterator(
    data: str,
    *,
    dp_rank: int,  # mpu.get_data_parallel_rank()
    dp_world_size: int,  # mpu.get_data_parallel_world_size()
    global_batch: int,  # args.global_batch_size
    micro_batch: int,  # args.micro_batch_size
    consumed: int,  # args.consumed_train_samples
) -> Iterator[dict[str, torch.Tensor]]:
    dataset = StreamingTokenDataset(
        local=data,
        global_batch=global_batch,
        shuffle=True,
        extras=["targets", "position_ids"],
        dp_rank=dp_rank,
        dp_world_size=dp_world_size,
    )
    loader = StreamingTokenLoader(dataset)
    loader.skip(consumed // global_batch)
    return micro_batches(loader, micro_batch)
