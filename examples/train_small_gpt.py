"""Train a small GPT on the CPU, from a dataset that `shardmill demo` made.

python examples/train_small_gpt.py demo-output/dataset checkpoint.pt --steps 200

The checkpoint holds the model, the optimizer and the state of the loader. Kill the program at any
moment and run it again: it resumes, and its losses are those of a run that was never killed.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader

LENGTH, BATCH = 128, 8  # tokens per sequence, sequences per step


class SmallGPT(nn.Module):
    """A decoder of two layers.

    Args:
        vocabulary: the number of token ids.
        width: the width of the embeddings.
    """

    def __init__(self, vocabulary: int, width: int = 128) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits (batch, length, vocabulary) of the tokens after each of `tokens`."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        logits: torch.Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return logits


def main() -> None:
    """Train to a number of steps, from the checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    dataset = StreamingTokenDataset(
        local=str(arguments.dataset),
        batch_size=BATCH,
        sequence_length=LENGTH,
        shuffle=True,
        extras=["targets"],
    )
    loader = StreamingTokenLoader(dataset)
    model = SmallGPT(vocabulary=dataset.eot_id + 1)  # the end-of-text id is the last one
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step, losses = 0, list[float]()
    if arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
        print(f"resumed after step {step}", flush=True)

    while step < arguments.steps:
        for batch in loader:  # one epoch, or what is left of it
            logits = model(batch["tokens"])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            losses.append(loss.item())
            if step % 20 == 0:
                saved = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                    "step": step,
                }
                torch.save(saved, arguments.checkpoint.with_suffix(".new"))
                arguments.checkpoint.with_suffix(".new").replace(arguments.checkpoint)
                print(f"step {step}: loss {sum(losses) / len(losses):.3f}", flush=True)
                losses.clear()
            if step == arguments.steps:
                break


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("Stopped. Run it again: it resumes from the checkpoint.")
        sys.exit(130)
