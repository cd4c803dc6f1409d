"""Hugging Face datasets: `map` with the fast tokenizer in batches, kept as Arrow."""

from __future__ import annotations

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

from contract import Clock, arguments, load_tokenizers
from datasets import Dataset, concatenate_datasets


def main() -> None:
    """Load, map, save."""
    args = arguments()
    tokenizer, end = load_tokenizers(args.tokenizer)

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        encoded = tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"ids": [[*one.ids, end] for one in encoded]}

    clock = Clock()
    cache = str(args.output / "cache")
    loaded = [Dataset.from_parquet(str(path), cache_dir=cache) for path in args.files]
    texts = concatenate_datasets(loaded).select_columns(["text"])
    ids = texts.map(encode, batched=True, num_proc=args.workers, remove_columns=["text"])
    ids.save_to_disk(str(args.output / "ids"), num_proc=args.workers)
    lengths = (batch["ids"] for batch in ids.with_format("arrow").iter(10_000))
    clock.report(sum(len(column.combine_chunks().values) for column in lengths))


if __name__ == "__main__":
    main()
