"""The manifest, which makes a dataset whole.

A dataset counts when its manifest exists. It is a function of the source bytes and the
configuration alone, as its parts' records are.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from streaming_ext.dataset.layout import Split
from streaming_ext.dataset.record import MOST_BAD_LISTED, BadDocument, LeftOut, PartSummary
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


class ShuffleSummary(LeftOut):
    """What a shuffled dataset was made of, over all its sources; see `PartRecord` for the words.

    Attributes:
        sources: the table of `streaming_ext.dataset.shuffled.source_table`.
        files: that it lists.
        files_not_checked: of those, where nothing was there to compare their bytes with.
        bad_listed: the first bad documents in the order of the sources.
    """

    sources: FileRecord
    files: Count
    files_not_checked: Count = 0
    rows: Count
    null_documents: Count
    empty_documents: Count
    bad_listed: Annotated[tuple[BadDocument, ...], Field(max_length=MOST_BAD_LISTED)] = ()


class Manifest(Brief):
    """The commit point of a dataset, written last.

    `share` stands in the file only where there is one, `shuffled` only where the dataset is.
    """

    SINCE_1_0 = frozenset({"format", "share"})

    format: Literal[1, "1.1"] = 1
    spec: DatasetSpec
    parts: tuple[PartSummary, ...]
    splits: dict[Split, SplitSummary]
    tokenizer_files: tuple[FileRecord, ...]
    share: NodeShare | None = None
    shuffled: ShuffleSummary | None = None

    @model_validator(mode="after")
    def _is_shuffled_as_specified(self) -> Self:
        if (self.spec.shuffle is None) != (self.shuffled is None):
            raise ValueError(f"shuffle {self.spec.shuffle!r}, and sources told otherwise")
        return self

    @model_validator(mode="after")
    def _of_its_version(self) -> Self:
        newer = any(part.says_more() or part.source.says_more() for part in self.parts)
        require_version(self, newer=newer or self.spec.says_more())
        return self

    @property
    def not_checked(self) -> int:
        """Source files that came with nothing to compare their bytes with."""
        if self.shuffled is not None:
            return self.shuffled.files_not_checked
        several = sum(part.not_checked for part in self.parts if part.files > 1)
        # of a file that is cut each piece is a part
        alone = {part.source.url for part in self.parts if part.files == 1 and part.not_checked}
        return several + len(alone)

    @property
    def bad_documents(self) -> int:
        """Rows that could not be read."""
        if self.shuffled is not None:
            return self.shuffled.bad_documents
        return sum(part.bad_documents for part in self.parts)

    @property
    def duplicate_documents(self) -> int:
        """Rows that were left out as copies of earlier documents."""
        return sum(part.duplicate_documents for part in self.parts)

    @property
    def duplicate_tokens(self) -> int:
        """Tokens of these, with one end-of-text id each."""
        return sum(part.duplicate_tokens for part in self.parts)

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        return sum(part.text_bytes for part in self.parts)

    @property
    def tokens(self) -> int:
        """Tokens of all splits, padding left out."""
        return sum(split.tokens for split in self.splits.values())
