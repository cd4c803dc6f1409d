"""The manifest, which makes a dataset whole.

A dataset counts when its manifest exists. It is a function of the source bytes and the
configuration alone, as its parts' records are.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from streaming_ext.dataset.layout import Split
from streaming_ext.dataset.record import PartSummary
from streaming_ext.dataset.schema import Brief, Count, FileRecord, Hash, Value, require_version
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


class Manifest(Brief):
    """The commit point of a dataset, written last.

    `share` stands in the file only where there is one.
    """

    SINCE_1_0 = frozenset({"format", "share"})

    format: Literal[1, "1.1"] = 1
    spec: DatasetSpec
    parts: tuple[PartSummary, ...]
    splits: dict[Split, SplitSummary]
    tokenizer_files: tuple[FileRecord, ...]
    share: NodeShare | None = None

    @model_validator(mode="after")
    def _of_its_version(self) -> Self:
        newer = any(part.says_more() or part.source.says_more() for part in self.parts)
        require_version(self, newer=newer or self.spec.says_more())
        return self

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        return sum(part.text_bytes for part in self.parts)

    @property
    def tokens(self) -> int:
        """Tokens of all splits, padding left out."""
        return sum(split.tokens for split in self.splits.values())
