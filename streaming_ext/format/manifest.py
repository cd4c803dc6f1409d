"""The manifest, which makes a dataset complete.

A dataset counts if its manifest exists. Like the records of parts, the manifest depends only on the
source bytes and the configuration.

An extension adds parts and replaces the manifest. The older generation stays beside the new one:

    manifest.json                    manifest of the newest generation: the commit point
    generations/<hash>.json          manifest of an older generation, by its content hash
    train/index.json                 index of the newest generation, for stock readers
    train/index-<hash>.json          index of each generation, by its content hash
"""

from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import (
    Split,
    columns_path,
    generation_path,
    kept_index_path,
)
from streaming_ext.format.record import MOST_BAD_LISTED, BadDocument, PartSummary, RowCounts
from streaming_ext.format.schema import (
    Count,
    FileRecord,
    Hash,
    Value,
    content_hash,
    require_all,
    to_json,
)
from streaming_ext.format.spec import DatasetSpec


class SplitSummary(Value):
    """The entry of a split in the manifest; `SplitPart` describes the fields."""

    index: FileRecord
    documents: Count
    tokens: Count
    padding: Count
    samples: Count
    shards: Count


class NodePartition(Value):
    """The partition of the sources that a dataset holds, if each node keeps its own.

    Attributes:
        rank: the rank of the node, from 0.
        nodes: the number of nodes.
        sources: content hash of the list of all source files, the same on every node.
    """

    rank: Count
    nodes: Annotated[int, Field(gt=0)]
    sources: Hash

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.nodes} nodes (list of sources {self.sources:.8})"

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        require_all({"rank": self.rank < self.nodes})
        return self


class ShuffleSummary(RowCounts):
    """All sources of a shuffled dataset; `RowCounts` describes the other fields.

    Attributes:
        sources: the table of sources; see `streaming_ext.format.shuffled`.
        files: the number of files that it lists.
        files_not_checked: the number of files whose bytes could not be compared with anything.
        bad_listed: the first bad documents in the order of the sources.
    """

    sources: FileRecord
    files: Count
    files_not_checked: Count = 0
    bad_listed: Annotated[tuple[BadDocument, ...], Field(max_length=MOST_BAD_LISTED)] = ()

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        listed = min(self.bad_documents, MOST_BAD_LISTED)
        require_all({"bad_listed": len(self.bad_listed) == listed})
        return self


class MergedDataset(Value):
    """A dataset whose parts are consecutive parts of a merged dataset.

    Attributes:
        manifest: content hash of its manifest.
        parts: the number of its parts.
        spec: the specification of the dataset.
        node_partition: see `Manifest`.
    """

    manifest: Hash
    parts: Count
    spec: DatasetSpec
    node_partition: NodePartition | None = None


class KeptDigests(Value):
    """Hashes of the texts that one generation of a dataset without copies holds.

    Attributes:
        documents: the number of documents with these hashes.
        files: the files of the hashes; file i of n holds the i-th of n equal ranges; see
            `streaming_ext.format.duplicates`.
    """

    documents: Count
    files: Annotated[tuple[FileRecord, ...], Field(min_length=1)]


class AddedColumns(Value):
    """Columns that were added from a table to the documents of consecutive parts.

    Attributes:
        columns: the names of the columns.
        first_part: the first of these parts.
        files: the file of values of each part, in the order of its list of documents.
        replaced: the older manifest without the columns, which lies beside the newer one.
    """

    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    first_part: Count = 0
    files: Annotated[tuple[FileRecord, ...], Field(min_length=1)]
    replaced: FileRecord

    @property
    def table(self) -> str:
        """The hash that names the table in the paths of the files; see `columns_path`."""
        return PurePosixPath(self.files[0].path).parent.name

    @property
    def end(self) -> int:
        """The part after the last one."""
        return self.first_part + len(self.files)


class Generation(Value):
    """A dataset before it was extended: the first parts of the extended one.

    Attributes:
        manifest: the older manifest, which lies beside the newer one.
        parts: the number of its parts.
        splits: the splits of the dataset.
        shuffled: see `Manifest`.
    """

    manifest: FileRecord
    parts: Count
    splits: dict[Split, SplitSummary]
    shuffled: ShuffleSummary | None = None


def kept_indexes(splits: Mapping[Split, SplitSummary]) -> list[FileRecord]:
    """Return the indexes of some splits with paths that no later generation overwrites."""
    return [
        summary.index.model_copy(update={"path": kept_index_path(split, summary.index.xxh128)})
        for split, summary in splits.items()
    ]


class Manifest(Value):
    """The commit point of a dataset, written last.

    `generations` lists the older generations, the oldest first. `digests` lists the hashes of the
    texts that each generation added, if copies were left out. `added` lists the columns that were
    added after the documents.
    """

    format: Literal[1] = 1
    spec: DatasetSpec
    parts: tuple[PartSummary, ...]
    splits: dict[Split, SplitSummary]
    tokenizer_files: tuple[FileRecord, ...]
    node_partition: NodePartition | None = None
    shuffled: ShuffleSummary | None = None
    merged: tuple[MergedDataset, ...] = ()
    generations: tuple[Generation, ...] = ()
    digests: tuple[KeptDigests, ...] = ()
    added: tuple[AddedColumns, ...] = ()

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        counts = [*(each.parts for each in self.generations), len(self.parts)]
        shuffled = self.shuffled is not None
        require_all(
            {
                "generations": all(before < after for before, after in pairwise(counts))
                and all(
                    (each.shuffled is not None) == shuffled
                    and each.manifest.path == generation_path(each.manifest.xxh128)
                    for each in self.generations
                ),
                "digests": len(self.digests) in (0, len(counts)),
                "added": all(
                    each.end <= len(self.parts)
                    and not {*each.columns} & {*self.spec.keep_columns}
                    and each.replaced.path == generation_path(each.replaced.xxh128)
                    and all(
                        file.path == columns_path(each.table, part)
                        for part, file in enumerate(each.files, each.first_part)
                    )
                    for each in self.added
                ),
                "merged": not self.merged
                or sum(each.parts for each in self.merged) == len(self.parts),
                "shuffled": (self.spec.shuffle is not None) == shuffled,
            }
        )
        return self

    @property
    def members(self) -> tuple[MergedDataset, ...]:
        """The datasets of which it was merged, or the parts that each of its generations added."""
        if self.merged or not self.generations:
            return self.merged
        hashes = [each.manifest.xxh128 for each in self.generations]
        ends = [0, *(each.parts for each in self.generations), len(self.parts)]
        return tuple(
            MergedDataset(manifest=content, parts=end - begin, spec=self.spec)
            for content, (begin, end) in zip(
                [*hashes, content_hash(to_json(self))], pairwise(ends), strict=True
            )
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of its documents: the kept columns, then the added ones."""
        added = (name for each in self.added for name in each.columns)
        return tuple(dict.fromkeys([*self.spec.keep_columns, *added]))

    @property
    def older(self) -> list[FileRecord]:
        """The manifests that were replaced, the oldest first."""
        found = [
            (each.end, 0, each.replaced)
            for each in self.added
            # If columns cover only some parts of a merged dataset, the older manifest is not here.
            if not self.merged or len(each.files) == len(self.parts)
        ]
        found += [(each.parts, 1, each.manifest) for each in self.generations]
        return [file for *_, file in sorted(found, key=lambda each: each[:2])]

    def added_to(self, part: int) -> dict[FileRecord, tuple[str, ...]]:
        """Return the files of values that were added to a part's documents, with their columns."""
        return {
            each.files[part - each.first_part]: each.columns
            for each in self.added
            if each.first_part <= part < each.end
        }

    def as_generation(self, file: FileRecord) -> Generation:
        """Return the entry of this generation in the next manifest; `file` is this manifest."""
        return Generation(
            manifest=file.model_copy(update={"path": generation_path(file.xxh128)}),
            parts=len(self.parts),
            splits=self.splits,
            shuffled=self.shuffled,
        )

    def before(self, number: int) -> Self:
        """Return the manifest of a generation that this manifest lists."""
        each = self.generations[number]
        older = {
            "parts": self.parts[: each.parts],
            "splits": each.splits,
            "shuffled": each.shuffled,
            "generations": self.generations[:number],
            "digests": self.digests[: number + 1],
            "added": tuple(files for files in self.added if files.end <= each.parts),
        }
        return self.model_copy(update=older)

    def spec_of(self, part: int) -> DatasetSpec:
        """Return the specification of a part; in a merged dataset, of the part's own dataset."""
        for each in self.merged:
            if part < each.parts:
                return each.spec
            part -= each.parts
        return self.spec

    @property
    def not_checked(self) -> int:
        """Number of source files whose bytes could not be compared with anything."""
        if self.shuffled is not None:
            return self.shuffled.files_not_checked
        several = sum(part.not_checked for part in self.parts if part.files > 1)
        # Each span of a file that was cut is a part, so a set counts the file once.
        alone = {part.source.url for part in self.parts if part.files == 1 and part.not_checked}
        return several + len(alone)

    @property
    def row_counts(self) -> RowCounts:
        """The counts of rows of all sources."""
        return RowCounts.total(self.parts if self.shuffled is None else [self.shuffled])

    @property
    def duplicate_documents(self) -> int:
        """Number of rows that were left out as copies of earlier documents."""
        return sum(part.duplicate_documents for part in self.parts)

    @property
    def duplicate_tokens(self) -> int:
        """Number of tokens of these rows, with one end-of-text id each."""
        return sum(part.duplicate_tokens for part in self.parts)

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        return sum(part.text_bytes for part in self.parts)

    @property
    def tokens(self) -> int:
        """Number of tokens in all splits, without padding."""
        return sum(split.tokens for split in self.splits.values())


_SHOWN: Final = 12  # digits of a hash in messages


def chosen_generation(
    manifest: Manifest, data: bytes, prefix: str | None, *, where: str
) -> FileRecord | None:
    """Find the older manifest whose hash has a prefix; return None for the newest generation.

    Args:
        manifest: the manifest of the newest generation.
        data: the bytes of this manifest.
        prefix: the first characters of the content hash of a manifest; None for the newest.
        where: the dataset, for messages.

    Raises:
        UsageError: no generation has such a hash, or several have one.
    """
    if prefix is None:
        return None
    own = content_hash(data)
    older = manifest.older
    found = {file.xxh128 for file in older} | {own}
    matching = sorted(each for each in found if prefix and each.startswith(prefix.lower()))
    if len(matching) != 1:
        hashes = ", ".join([*(file.xxh128[:_SHOWN] for file in older), f"{own[:_SHOWN]} (newest)"])
        said = f"{len(matching)} generations have" if matching else "no generation has"
        raise UsageError(
            f"{where}: {said} a hash that begins with {prefix!r}. There are, the oldest first: "
            f"{hashes}."
        )
    return next((file for file in older if file.xxh128 == matching[0]), None)


def index_file(split: Split, index: FileRecord, existing: Collection[str]) -> FileRecord:
    """Return the record of the index under its own hash if that file exists, else `index`.

    Args:
        split: a split of the dataset.
        index: the index as the manifest lists it.
        existing: paths of the files of the dataset.
    """
    kept = kept_index_path(split, index.xxh128)
    return index.model_copy(update={"path": kept}) if kept in existing else index
