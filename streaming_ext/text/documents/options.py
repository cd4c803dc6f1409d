"""What is read of a source file: part of the configuration that decides the bytes."""

from dataclasses import dataclass
from typing import Literal

from streaming_ext.text.filters.condition import Kind
from streaming_ext.text.filters.filters import NO_FILTERS, Filters

FormatName = Literal["parquet", "jsonl", "json", "cbor", "arrow", "webdataset", "text"]
OnBadDocument = Literal["fail", "skip"]
SEPARATOR = "\n\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """Which text a document is, in files of every format.

    Attributes:
        columns: that hold its text; each a name, or a path such as `meta.text`.
        separator: what stands between the texts of several columns.
        source_format: name of the format of all files; None where each one's name tells it.
        on_bad_document: whether a document that cannot be read fails its file or is left out.
        filters: which documents stay.
    """

    columns: tuple[str, ...] = ("text",)
    separator: str = SEPARATOR
    source_format: FormatName | None = None
    on_bad_document: OnBadDocument = "fail"
    filters: Filters = NO_FILTERS

    @property
    def compared(self) -> dict[str, Kind]:
        """Further columns that are read, for a condition: each with what it must hold."""
        condition = self.filters.condition
        return {} if condition is None else condition.columns
