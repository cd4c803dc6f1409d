"""Train with Hugging Face's Trainer; a callback saves the state of the loader.

torchrun --nproc-per-node 8 examples/trainers/huggingface_train.py DATASET FOLDER STEPS [CHECKPOINT]
"""

import json
import sys
from pathlib import Path
from typing import Any

from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader

GLOBAL_BATCH, LENGTH = 8, 8  # sequences per step, tokens per sequence


class SaveLoader(TrainerCallback):
    def __init__(self, loader: StreamingTokenLoader) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            (folder / "loader.json").write_text(json.dumps(self.loader.state_dict()))


class TokenTrainer(Trainer):
    loader: StreamingTokenLoader

    def get_train_dataloader(self) -> Any:
        return self.loader

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        seen = inputs["sequence_ids"].tolist()
        print(json.dumps({"step": self.state.global_step, "seen": seen}), flush=True)
        # the model shifts labels itself
        return super().compute_loss(
            model, {"input_ids": inputs["tokens"], "labels": inputs["tokens"]}, *args, **kwargs
        )


def main(data: str, folder: str, steps: int, checkpoint: str | None = None) -> None:
    arguments = TrainingArguments(  # starts the process group
        output_dir=folder,
        max_steps=steps,
        save_steps=10,
        report_to=[],
        use_cpu=True,
        ignore_data_skip=True,  # the loader knows where it was
        remove_unused_columns=False,
    )
    dataset = StreamingTokenDataset(
        local=data,
        batch_size=GLOBAL_BATCH // arguments.world_size,
        sequence_length=LENGTH,
        shuffle=True,
        extras=["sequence_ids"],
    )
    loader = StreamingTokenLoader(dataset, num_workers=1)
    if checkpoint is not None:
        loader.load_state_dict(json.loads(Path(checkpoint, "loader.json").read_text()))
    ids = dataset.eot_id + 1  # the end-of-text id is GPT-2's last one
    config = GPT2Config(vocab_size=ids, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=1)
    trainer = TokenTrainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        callbacks=[SaveLoader(loader)],
    )
    trainer.loader = loader
    trainer.train(resume_from_checkpoint=checkpoint)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
