"""`StreamingTextDataset`: text in, the batches of `StreamingTokenDataset` out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streaming_ext.errors import UsageError
from streaming_ext.from_text.text_cache import TextCache
from streaming_ext.from_text.text_stream import TEXT_SETTINGS, TextStream
from streaming_ext.streams import TokenStream
from streaming_ext.token_dataset import StreamingTokenDataset

WINDOW = 1 << 14  # sequences of a lane that are shuffled among each other, where nobody says


class StreamingTextDataset(StreamingTokenDataset):
    """Rows of tokens straight from files of text; order, ranks and resume are exact.

    The first time, all text is tokenized once, by all cores, to know where rows begin; tokens stay
    in the cache as far as `cache_limit` allows. What is not there is made when it is needed.

    Args:
        sources: files of text, folders, patterns or URLs: all that `shardmill shard` takes.
        tokenizer: of the text.
        sequence_length: tokens a row.
        local: folder of the cache; below the user's cache folder unless given.
        streams: several texts (`TextStream`) and datasets (`TokenStream`), in place of these.
        shuffle_block_size: as in `StreamingTokenDataset`, but 16,384 unless given: so many rows of
            each lane should have room in the cache.
        settings: whatever else `TextStream` and `StreamingTokenDataset` take.

    Raises:
        UsageError: an argument is not allowed; the message says which and what is.
        SourceError: a file is damaged; names it, and the line or row.
    """

    def __init__(
        self,
        *,
        sources: str | Sequence[str] | None = None,
        tokenizer: str | None = None,
        sequence_length: int | str,
        local: str | Path | None = None,
        streams: Sequence[TokenStream] | None = None,
        shuffle_block_size: int = WINDOW,
        **settings: Any,
    ) -> None:
        of_text = {name: settings.pop(name) for name in TEXT_SETTINGS & settings.keys()}
        named = {"sources": sources, "tokenizer": tokenizer, "local": local, **of_text}
        given = {name: value for name, value in named.items() if value is not None}
        if streams is None:
            streams = [TextStream(**given)]
        elif given:
            raise UsageError(
                f"Give either streams=[...], or {', '.join(sorted(given))}; a TextStream takes "
                "these too."
            )
        super().__init__(
            streams=streams,
            sequence_length=sequence_length,
            shuffle_block_size=shuffle_block_size,
            **settings,
        )

    def materialize(self, output: str | Path, *, workers: int | None = None) -> None:
        """Make a dataset of the text, as `shardmill shard` with the same settings does.

        `StreamingTokenDataset` goes on there from a state of this one, with the same rows. Killed
        in the middle, it goes on when it is called again.

        Args:
            output: a folder, s3://, gs:// or az://.
            workers: processes; by default one a core.

        Raises:
            UsageError: there are several texts, or Prefect is not installed.
            DatasetError: the command failed; with what it said.
        """
        from streaming_ext.training.materialize import materialize

        (stream, *others), (cache, *_) = self.streams, self.reader.caches
        if others or not isinstance(stream, TextStream) or not isinstance(cache, TextCache):
            raise UsageError(
                "materialize() makes a dataset of one text: call it on a StreamingTextDataset of "
                "each, and mix the datasets."
            )
        materialize(stream, cache, str(output), workers=workers)
