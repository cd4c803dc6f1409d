"""Right and wrong calls of the public interface, for the type checkers of `test_typing.py`.

Each checker must refuse the lines that end in `# wrong`, and no other line.
"""

from pathlib import Path

from streaming_ext import (
    StreamingTextDataset,
    StreamingTokenDataset,
    StreamingTokenLoader,
    TokenStream,
)

dataset = StreamingTokenDataset(local=Path("data"), batch_size=4, extras="targets", shuffle=True)
StreamingTokenDataset(remote="s3://bucket/data", local="cache", cache_limit="200gb", dp_rank=0)
StreamingTokenDataset(local="data", global_batch="0:768 250B:1536", extras=["targets"])
StreamingTextDataset(sources="*.txt", tokenizer="gpt2", sequence_length=128, part_size="1gb")
StreamingTokenDataset(streams=[TokenStream(local="data", where="score >= 4", repeat=4)])
StreamingTokenDataset(
    local="data", proportion_by="column:language", proportions={"de": 2, "en": "0:1 1B:2"}
)
by_number: dict[int, float] = {2024: 0.5, 2025: 1}
StreamingTokenDataset(local="data", proportion_by="column:year", proportions=by_number)
loader = StreamingTokenLoader(dataset, num_workers=2, multiprocessing_context="fork")
ids: list[int] = dataset.tokenizer.encode("a text")
text: str = dataset.tokenizer.decode(ids)
epochs: int = loader.plan(epochs=2).steps

StreamingTokenDataset("data")  # wrong
StreamingTokenDataset(local="data", bach_size=4)  # wrong
StreamingTokenDataset(local="data", shuffle_algo="py1e")  # wrong
StreamingTokenDataset(local="data", batch_size="4")  # wrong
StreamingTokenDataset(local=7)  # wrong
StreamingTokenDataset(local="data", proportion_by="column:a", proportions=["de"])  # wrong
TokenStream(local="data", where=4)  # wrong
StreamingTextDataset(sources="*.txt", tokenizer="gpt2")  # wrong
StreamingTextDataset(sources="a.x", tokenizer="gpt2", sequence_length=8, format="docx")  # wrong
StreamingTokenLoader(dataset, 2)  # wrong
StreamingTokenLoader(dataset, num_workers=None)  # wrong
