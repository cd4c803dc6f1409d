"""The columns of a Parquet file that are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from streaming_ext.text.documents.columns import Path as ColumnPath
from streaming_ext.text.documents.columns import find_columns, find_compared
from streaming_ext.text.documents.options import ReadOptions


@dataclass(frozen=True, slots=True)
class ChosenColumns:
    """The columns that are read: those of the text, and those of a condition."""

    texts: Sequence[ColumnPath]
    compared: Sequence[ColumnPath]

    @classmethod
    def of(cls, schema: pa.Schema, options: ReadOptions, *, where: str) -> Self:
        """Those that the options name."""
        return cls(
            find_columns(schema, options.columns, where=where),
            find_compared(schema, options.compared, where=where),
        )

    @property
    def text_names(self) -> list[str]:
        """What columns are called by those who read them."""
        return [".".join(path) for path in self.texts]

    @property
    def names(self) -> list[str]:
        """The same, with those of the condition."""
        return list(dict.fromkeys(self.text_names + [".".join(path) for path in self.compared]))
