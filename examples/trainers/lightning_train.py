"""Train with Lightning, which saves the state of the loader.

python examples/trainers/lightning_train.py DATASET FOLDER STEPS DEVICES [CHECKPOINT]
"""

import json
import sys
from typing import Any

import lightning
import torch
from torch import nn

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader

GLOBAL_BATCH, LENGTH = 8, 8  # sequences per step, tokens per sequence


class Model(lightning.LightningModule):
    def __init__(self, data: str) -> None:
        super().__init__()
        self.data = data
        ids = StreamingTokenDataset(local=data, dp_rank=0, dp_world_size=1).eot_id + 1  # as GPT-2's
        self.net = nn.Sequential(nn.Embedding(ids, 16), nn.Linear(16, ids))
        self.loader: StreamingTokenLoader | None = None
        self.saved: dict[str, Any] | None = None

    def train_dataloader(self) -> StreamingTokenLoader:
        if self.loader is None:  # Lightning may ask again in every epoch
            dataset = StreamingTokenDataset(
                local=self.data,
                batch_size=GLOBAL_BATCH // self.trainer.world_size,
                sequence_length=LENGTH,
                shuffle=True,
                extras=["targets", "sequence_ids"],
            )
            self.loader = StreamingTokenLoader(dataset, num_workers=1)
            if self.saved is not None:
                self.loader.load_state_dict(self.saved)
        return self.loader

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["loader"] = self.train_dataloader().state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.saved = checkpoint["loader"]
        if self.loader is not None:
            self.loader.load_state_dict(self.saved)

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        print(json.dumps({"step": self.global_step, "seen": batch["sequence_ids"].tolist()}))
        logits = self.net(batch["tokens"])
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(data: str, folder: str, steps: int, devices: int, checkpoint: str | None = None) -> None:
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        strategy="ddp",
        devices=devices,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(Model(data), ckpt_path=checkpoint)
    trainer.save_checkpoint(f"{folder}/{steps}.ckpt")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
