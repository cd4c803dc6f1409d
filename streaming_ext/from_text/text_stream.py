"""Files of text as a stream of training: which, how they are read, and with which tokenizer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ByteSize, Field, ValidationError

from streaming_ext.dataset.compression import Compression
from streaming_ext.errors import UsageError
from streaming_ext.plain_faults import plain_faults
from streaming_ext.streams import TokenStream
from streaming_ext.text.documents.options import SEPARATOR
from streaming_ext.text.options import TextOptions

if TYPE_CHECKING:
    from streaming_ext.dataset.spec import DatasetSpec, TokenizerIdentity


class StreamedText(TextOptions):
    """The options of `shardmill shard` that decide what is read, and some of its own.

    Attributes:
        holdout_fraction: share of the documents that is not in split `train`, but in `holdout`.
        holdout_seed: decides which.
        shard_size: bytes of tokens that the order permutes as one, as shards of this size.
        compression: of the shards of a dataset that this one must be like; see `materialize`.
        engine: `auto`, or `reference` to tokenize with the reference alone.
        scan_threads: threads that count the tokens; by default one a core.
    """

    holdout_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    holdout_seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    shard_size: Annotated[ByteSize, Field(gt=0)] = ByteSize(64 * 2**20)
    compression: str = "zstd:1"
    engine: Literal["auto", "reference"] = "auto"
    scan_threads: Annotated[int | None, Field(gt=0)] = None


@dataclass(frozen=True, init=False)
class TextStream(TokenStream):
    """Text that is tokenized when training needs it: `TextStream(sources=..., tokenizer=...)`.

    Attributes:
        text: what is read; each of its fields is an argument of its own.
    """

    text: StreamedText

    def __init__(self, *, text: StreamedText | None = None, **settings: Any) -> None:
        """Take the settings of `TokenStream` and `StreamedText`.

        Raises:
            UsageError: one is not allowed.
        """
        given = {} if text is None else text.model_dump(exclude_unset=True)
        given |= {name: settings.pop(name) for name in TEXT_SETTINGS & settings.keys()}
        super().__init__(**settings)
        if self.remote is not None:
            raise UsageError(
                f"A stream of text has sources=, not remote=; got {self.remote!r}. `local` names "
                "the folder of its cache."
            )
        try:
            object.__setattr__(self, "text", StreamedText.model_validate(given))
            Compression.parse(self.text.compression)
        except ValidationError as error:
            raise UsageError(
                f"The settings of the text are not allowed: {plain_faults(error)}."
            ) from error

    @property
    def place(self) -> str:
        """Where the text lies, for people."""
        return ", ".join(self.text.sources)

    def spec(self, tokenizer: "TokenizerIdentity", sequence_length: int) -> "DatasetSpec":
        """What decides the tokens, beside the sources, and where rows and their units begin.

        Raises:
            UsageError: a shard of this size holds no row.
        """
        from streaming_ext.dataset.spec import DatasetSpec

        read = self.text.read_options
        joined = len(read.columns) > 1  # else a separator decides nothing
        spec = DatasetSpec(
            text_column=read.columns if joined else read.columns[0],
            text_separator=read.separator if joined else SEPARATOR,
            source_format=read.source_format,
            on_bad_document=read.on_bad_document,
            filters=read.filters,
            sequence_length=sequence_length,
            holdout_fraction=self.text.holdout_fraction,
            holdout_seed=self.text.holdout_seed,
            shard_size=int(self.text.shard_size),
            compression=self.text.compression,
            tokenizer=tokenizer,
        )
        spec.shard_format.require_possible()
        return spec


TEXT_SETTINGS = StreamedText.model_fields.keys()
