"""Files of text as a stream of training: which, how they are read, and with which tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from streaming_ext.errors import UsageError
from streaming_ext.streams import TokenStream
from streaming_ext.units import parse_bytes

if TYPE_CHECKING:
    from streaming_ext.dataset.spec import DatasetSpec, TokenizerIdentity
    from streaming_ext.text.documents.options import FormatName, OnBadDocument


@dataclass(frozen=True, kw_only=True)
class TextStream(TokenStream):
    """Text that is tokenized when training needs it; the words are those of `shardmill shard`.

    Attributes:
        sources: files of text, folders, patterns, URLs, or a dataset of the Hub; one or several.
        tokenizer: tiktoken encoding, rank file, tokenizer.json, or repository of the Hub.
        eot_token: end-of-text token, where the tokenizer does not tell.
        pattern: pretokenization of a rank file whose name does not tell.
        text_column: that holds the documents; several are joined.
        text_separator: between the texts of several columns.
        format: of all files; by default as the name of each tells.
        on_bad_document: whether one that cannot be read is an error, or is left out.
        where: condition on other columns that documents must meet.
        min_bytes, min_characters, min_tokens, max_tokens: drop documents with less or more.
        holdout_fraction: share of the documents that is not in split `train`, but in `holdout`.
        holdout_seed: decides which.
        part_size: files of more bytes are cut into parts, where they can be.
        min_part_size: small files are taken together until a part has so many bytes. Only the last
            row of a part is filled up.
        shard_size: bytes of tokens that the order permutes as one, as shards of this size.
        compression: of the shards of a dataset that this one must be like; see `materialize`.
        hub_config: configuration of a dataset of the Hub.
        max_files: take only the first so many files.
        engine: `auto`, or `reference` to tokenize with the reference alone.
        scan_threads: threads that count the tokens; by default one a core.
    """

    sources: str | Sequence[str] = ()
    tokenizer: str = ""
    eot_token: str | None = None
    pattern: str | None = None
    text_column: str | tuple[str, ...] = "text"
    text_separator: str = "\n\n"
    format: "FormatName | None" = None
    on_bad_document: "OnBadDocument" = "fail"
    where: str | None = None
    min_bytes: int | None = None
    min_characters: int | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    holdout_fraction: float = 0.0
    holdout_seed: int = 0
    part_size: int | str = 2**30
    min_part_size: int | str = 0
    shard_size: int | str = 64 * 2**20
    compression: str = "zstd:1"
    hub_config: str | None = None
    max_files: int | None = None
    engine: Literal["auto", "reference"] = "auto"
    scan_threads: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sources or not self.tokenizer:
            raise UsageError(
                "A stream of text needs sources=, the files, and tokenizer=; got "
                f"sources={self.sources!r} and tokenizer={self.tokenizer!r}."
            )
        if self.remote is not None:
            raise UsageError(
                f"A stream of text has sources=, not remote=; got {self.remote!r}. `local` names "
                "the folder of its cache."
            )
        if self.scan_threads is not None and self.scan_threads < 1:
            raise UsageError(f"`scan_threads` must be at least 1, got {self.scan_threads}.")

    @property
    def patterns(self) -> tuple[str, ...]:
        """The sources as they were named."""
        return (self.sources,) if isinstance(self.sources, str) else tuple(self.sources)

    @property
    def part_bytes(self) -> tuple[int, int]:
        """Bytes of a part, at most and at least."""
        return _bytes(self.part_size, "part_size"), _bytes(self.min_part_size, "min_part_size")

    @property
    def place(self) -> str:
        """Where the text lies, for people."""
        return ", ".join(self.patterns)

    def spec(self, tokenizer: "TokenizerIdentity", sequence_length: int) -> "DatasetSpec":
        """What decides the tokens, beside the sources, and where rows and their units begin.

        Raises:
            UsageError: a value is not allowed.
        """
        from pydantic import ValidationError

        from streaming_ext.dataset.compression import Compression
        from streaming_ext.dataset.spec import DatasetSpec
        from streaming_ext.text.documents.options import SEPARATOR
        from streaming_ext.text.filters.filters import Filters

        columns = (self.text_column,) if isinstance(self.text_column, str) else self.text_column
        Compression.parse(self.compression)
        try:
            spec = DatasetSpec(
                text_column=columns if len(columns) > 1 else columns[0],
                text_separator=self.text_separator if len(columns) > 1 else SEPARATOR,
                source_format=self.format,
                on_bad_document=self.on_bad_document,
                filters=Filters(
                    where=self.where, min_bytes=self.min_bytes, max_tokens=self.max_tokens,
                    min_characters=self.min_characters, min_tokens=self.min_tokens,
                ),
                sequence_length=sequence_length,
                holdout_fraction=self.holdout_fraction,
                holdout_seed=self.holdout_seed,
                shard_size=_bytes(self.shard_size, "shard_size"),
                compression=self.compression,
                tokenizer=tokenizer,
            )  # fmt: skip
        except ValidationError as error:
            told = "; ".join(f"`{each['loc'][0]}`: {each['msg']}" for each in error.errors())
            raise UsageError(f"The settings of the text are not allowed: {told}.") from error
        spec.shard_format.require_possible()
        return spec


def _bytes(value: int | str, name: str) -> int:
    return 0 if str(value).strip() == "0" else parse_bytes(value, name=name) or 0
