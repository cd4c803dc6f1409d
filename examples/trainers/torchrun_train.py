"""Train on any number of ranks, and resume on any other.

torchrun --nproc-per-node 8 examples/trainers/torchrun_train.py DATASET CHECKPOINT STEPS
"""

import json
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader

GLOBAL_BATCH, LENGTH = 8, 8  # sequences per step, tokens per sequence


class TinyGPT(nn.Module):
    def __init__(self, vocab: int, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.float64)
        hidden = self.tokens(tokens) + self.positions(torch.arange(length))
        return self.head(self.block(hidden, src_mask=mask, is_causal=True))


def main(data: str, checkpoint: str, steps: int) -> None:
    distributed.init_process_group("gloo")  # nccl on GPUs
    rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    dataset = StreamingTokenDataset(
        local=data,
        batch_size=GLOBAL_BATCH // world,
        sequence_length=LENGTH,
        shuffle=True,
        extras=["targets"],
    )
    loader = StreamingTokenLoader(dataset, num_workers=1)
    model = DistributedDataParallel(TinyGPT(dataset.eot_id + 1))  # GPT-2's last id
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    done = 0
    if Path(checkpoint).exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        done = saved["done"]
    while done < steps:
        for batch in loader:
            targets = batch["targets"]
            count = (targets >= 0).sum()
            distributed.all_reduce(count)
            logits = model(batch["tokens"])
            loss = (
                nn.functional.cross_entropy(
                    logits.flatten(0, 1), targets.flatten(), reduction="sum"
                )
                / count
            )
            optimizer.zero_grad()
            (loss * world).backward()  # DistributedDataParallel takes the mean over ranks
            optimizer.step()
            distributed.all_reduce(loss)
            done += 1
            if rank == 0:
                torch.save(
                    {
                        "model": model.module.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict(),
                        "done": done,
                    },
                    checkpoint + ".new",
                )
                Path(checkpoint + ".new").replace(checkpoint)
                print(json.dumps({"step": done, "loss": loss.item()}), flush=True)
            if done == steps:
                break
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
