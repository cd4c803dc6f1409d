"""The manifest, which makes a dataset whole.

A dataset counts when its manifest exists. It is a function of the source bytes and the
configuration alone, as its parts' records are.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from streaming_ext.dataset.layout import Split
from streaming_ext.dataset.record import PartSummary
from streaming_ext.dataset.schema import Count, FileRecord, Hash, Value
from streaming_ext.dataset.spec import DatasetSpec


class SplitSummary(Value):
    """A split in the manifest; see `SplitPart` for the words."""

    index: FileRecord
    documents: Count
    tokens: Count
    padding: Count
    samples: Count
    shards: Count


class NodeShare(Value):
    """Which share of the sources a dataset was made of, where each node keeps its own.

    Attributes:
        rank: of the node, from 0.
        nodes: how many there are.
        sources: content hash of the list of all source files, the same on every node.
    """

    rank: Count
    nodes: Annotated[int, Field(gt=0)]
    sources: Hash

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if self.rank >= self.nodes:
            raise ValueError(f"share {self.rank} of {self.nodes}")
        return self


class Manifest(Value):
    """The commit point of a dataset, written last.

    `share` stands in the file only where there is one; `format` is above 1 where a part is not one
    whole file.
    """

    format: Literal[1, "1.1"] = 1
    spec: DatasetSpec
    parts: tuple[PartSummary, ...]
    splits: dict[Split, SplitSummary]
    tokenizer_files: tuple[FileRecord, ...]
    share: NodeShare | None = None

    @model_serializer(mode="wrap")
    def _without_nothing(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        if self.share is None:
            del values["share"]
        return values

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        return sum(part.text_bytes for part in self.parts)

    @property
    def tokens(self) -> int:
        """Tokens of all splits, padding left out."""
        return sum(split.tokens for split in self.splits.values())
