"""What is read of a source file: part of the configuration that decides the bytes."""

from dataclasses import dataclass
from typing import Literal

from streaming_ext.text.filters.condition import Kind
from streaming_ext.text.filters.filters import NO_FILTERS, Filters

FormatName = Literal["parquet", "jsonl", "json", "cbor", "arrow", "webdataset", "text"]
# Sets of token ids that other trainers read; see `streaming_ext.text.token_sets`.
TokenSetName = Literal[
    "megatron",
    "litdata",
    "nanotron",
    "olmo",
    "nanogpt",
    "llmc",
    "modded-nanogpt",
    "webdataset",
    "mds",
]
IdType = Literal["uint8", "uint16", "uint32", "int32", "int64"]
RowsOf = Literal["samples", "documents"]
OnBadDocument = Literal["fail", "skip"]
SEPARATOR = "\n\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class IdOptions:
    """How documents lie in files of token ids.

    Attributes:
        set_format: name of the format of all files.
        eot_id: the end-of-text id, which ends a document wherever it stands.
        vocab_size: ids that there are.
        dtype: type of an id, for files that do not tell it; None takes what is usual.
        rows: what a sample of WebDataset is.
    """

    set_format: TokenSetName
    eot_id: int
    vocab_size: int
    dtype: IdType | None = None
    rows: RowsOf = "samples"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """Which text a document is, in files of every format.

    Attributes:
        columns: that hold its text; each a name, or a path such as `meta.text`.
        separator: what stands between the texts of several columns.
        source_format: name of the format of all files; None where each one's name tells it.
        on_bad_document: whether a document that cannot be read fails its file or is left out.
        filters: which documents stay.
        kept: further columns whose values are stored beside each document.
        ids: how documents lie in files that hold ids of tokens, and no text.
    """

    columns: tuple[str, ...] = ("text",)
    separator: str = SEPARATOR
    source_format: FormatName | None = None
    on_bad_document: OnBadDocument = "fail"
    filters: Filters = NO_FILTERS
    kept: tuple[str, ...] = ()
    ids: IdOptions | None = None

    @property
    def compared(self) -> dict[str, Kind]:
        """Further columns that are read, compared or kept, with what each must hold."""
        condition = self.filters.condition
        columns = {} if condition is None else dict(condition.columns)
        for column in self.kept:
            if columns.get(column, "any") == "any":
                columns[column] = "value"
        return columns
