"""What a subset has to do: which documents, in which parts, and which parts are there."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_ext.base.errors import NotADatasetError, UsageError
from streaming_ext.format.layout import MANIFEST, index_path, record_path
from streaming_ext.format.manifest import Manifest, MergedDataset
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.spec import DatasetSpec, SubsetRule
from streaming_ext.store import Storage, open_storage
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.writing.publish import filled_splits, merged_index, summarize_split
from tasks.core.build.build import Build, Recorded, Stretch, Tell, Whole, Words
from tasks.core.build.engine import compare
from tasks.core.build.outside import require_outside
from tasks.core.derive.choosing import Choice, Ints, choose_documents, choose_tokens, chosen
from tasks.core.derive.contents import records_of
from tasks.core.derive.move import Move, Unit, move_unit
from tasks.core.derive.move_config import SubsetConfig
from tasks.core.derive.subset_part import OriginalPart, SubsetJob, documents_of
from tasks.core.reading.dataset_files import DatasetFiles, read_records
from tasks.core.shard.plan import scratch_folder
from tasks.core.shard.publish import all_recorded, beside_parts, whole

_IO_THREADS = 8
_MOST_SPANS = 1000  # parts of the dataset that become one of the subset
_AT_ONCE = 2**20
# A run plans several times: the last choice by tokens, by the manifest's hash and what was asked.
_chosen: dict[tuple[str, int, int | None], Choice] = {}


@dataclass(frozen=True, kw_only=True)
class SubsetBuild(Build):
    """Some documents of a published dataset, as one of their own.

    Attributes:
        dataset: that it is taken of.
        original: its manifest.
        members: what the subset says that it was merged of.
        specs: of each part of the subset.
        originals: the parts of the dataset that each is made of.
        largest: shard of the dataset, in bytes.
    """

    config: SubsetConfig
    dataset: Storage
    original: Manifest
    spec: DatasetSpec
    members: tuple[MergedDataset, ...]
    specs: tuple[DatasetSpec, ...]
    originals: tuple[tuple[OriginalPart, ...], ...]
    largest: int
    phase: str = "subset"

    @property
    def words(self) -> Words:
        """How people see what the run does."""
        return Words("taking documents", "taken")

    @property
    def identity(self) -> DatasetSpec:
        """The specification, with the rule that chooses the documents."""
        return self.spec

    def is_published(self, output: Storage) -> bool:
        """Whether the output has the manifest of this subset."""
        try:
            held = read_manifest(output)
        except NotADatasetError:
            return False
        held.spec.require_same(self.spec, where=str(output))
        return True

    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """The parts that are recorded."""
        records = read_records(output)
        return Recorded(
            output,
            {
                number: [*map(Stretch.of, record.files())]
                for number, record in records.items()
                if number < len(self.specs) and record.spec == self.specs[number]
            },
        )

    def beside(self, output: Storage) -> Mapping[str, int]:
        """What the published subset holds beside its parts."""
        return {file.path: file.size for file in beside_parts(read_manifest(output))}

    def remove_leftovers(self, output: Storage) -> None:
        """Remove the records of what is made again: nothing says then that it is whole."""
        for number in self.todo:
            output.remove(record_path(number))

    def finish(self, output: Storage, tell: Tell) -> Whole:
        """Put the indexes and the tokenizer."""
        tell("reading the records")
        parts = all_recorded(output, len(self.parts))
        tell("putting the indexes")
        splits = {}
        for split in filled_splits(self.spec, parts):
            index = merged_index(split, parts, self.spec)
            output.put(index_path(split), index)
            splits[split] = summarize_split(split, parts, FileRecord.of(index_path(split), index))
        tell("putting the tokenizer")
        root = str(self.dataset)
        moves = tuple(Move.of(root, file) for file in self.original.tokenizer_files)
        move_unit(Unit(moves=moves), output, self.scratch / "rest", read=True)
        manifest = Manifest(
            spec=self.spec,
            parts=tuple(part.summary() for part in parts),
            splits=splits,
            tokenizer_files=self.original.tokenizer_files,
            share=self.original.share,
            merged=self.members,
        )
        return whole(manifest, parts)

    def job(self, step: str, number: int, output: Storage, results: Mapping[str, Any]) -> SubsetJob:
        """What a worker is to do for a part."""
        return SubsetJob(
            part=number,
            originals=self.originals[number],
            dataset=str(self.dataset),
            manifest=FileRecord.of(MANIFEST, to_json(self.original)),
            largest=self.largest,
            spec=self.specs[number],
            output=str(output),
            scratch=str(self.scratch / f"{number:05}"),
        )


def plan_subset(
    config: SubsetConfig, output: Storage, tell: Tell = lambda words: None
) -> SubsetBuild:
    """What a subset has to do; nothing is written.

    Raises:
        UsageError: there are not so many documents, or the output holds something else.
        ConfigMismatchError: another subset was begun or made there.
        DatasetError: there is no dataset, or it is damaged.
    """
    require_outside(output)
    dataset = open_storage(config.dataset)
    if str(dataset) == str(output):
        raise UsageError(f"{output} is the dataset itself. Use another --output.")
    manifest, records = records_of(dataset)
    _require_plain(dataset, manifest)
    counts = [sum(split.documents for split in record.splits.values()) for record in records]
    of = FileRecord.of(MANIFEST, to_json(manifest)).xxh128
    choice = _choose(config, dataset, records, sum(counts), of)
    rule = SubsetRule(
        of=of,
        documents=choice.documents,
        seed=config.drawn_by,
    )
    groups = list(_groups(manifest, records, counts, choice, config.drawn_by))
    specs = [
        manifest.spec_of(group[0].part).model_copy(update={"subset": rule}) for group in groups
    ]
    build = SubsetBuild(
        config=config,
        dataset=dataset,
        original=manifest,
        spec=manifest.spec.model_copy(update={"subset": rule}),
        members=_members(manifest, groups, rule),
        specs=tuple(specs),
        originals=tuple(groups),
        parts=tuple(_part(number, group, records) for number, group in enumerate(groups)),
        largest=choice.largest,
        scratch=scratch_folder(config, output),
    )
    return compare(build, output)


def _require_plain(dataset: Storage, manifest: Manifest) -> None:
    spec = manifest.spec
    for kind, value in {"shuffled": spec.shuffle, "deduplicated": spec.deduplicate}.items():
        if value is not None:
            raise UsageError(
                f"{dataset} is {kind}, which is checked over all of its documents: a subset of it "
                "cannot be. Take the subset of a dataset of the same sources that is not, or "
                "export it."
            )
    if spec.subset is not None or any(each.spec.subset is not None for each in manifest.merged):
        raise UsageError(
            f"{dataset} is a subset itself, or merged of one. Take one of the whole dataset."
        )


def _choose(
    config: SubsetConfig, dataset: Storage, records: Sequence[PartRecord], total: int, of: str
) -> Choice:
    seed = config.drawn_by
    if config.documents is not None:
        if config.documents > total:
            raise UsageError(
                f"{dataset} has {total:,} documents, --documents asks for {config.documents:,}."
            )
        return choose_documents(total, config.documents, seed)
    tokens = config.most_tokens or 0
    held = sum(split.tokens for record in records for split in record.splits.values())
    if tokens > held:
        raise UsageError(f"{dataset} has {held:,} tokens, --tokens asks for {tokens:,}.")
    chosen_before = _chosen.get((of, tokens, seed))
    choice = chosen_before or choose_tokens(_Lengths(dataset, records), tokens, seed)
    if choice is None:
        raise UsageError(f"The first document has more than {tokens:,} tokens. Raise --tokens.")
    _chosen.clear()
    _chosen[of, tokens, seed] = choice
    return choice


class _Lengths:
    """Tokens of all documents, with their end-of-text ids, as often as they are asked for."""

    def __init__(self, dataset: Storage, records: Sequence[PartRecord]) -> None:
        self._dataset, self._records = dataset, records

    def __iter__(self) -> Iterator[Ints]:
        with ThreadPoolExecutor(_IO_THREADS) as threads:
            for first in range(0, len(self._records), _IO_THREADS):  # few are held at a time
                for runs in threads.map(self._of, self._records[first : first + _IO_THREADS]):
                    yield from runs

    def _of(self, record: PartRecord) -> list[Ints]:
        files = DatasetFiles(self._dataset, {record.documents.path: record.documents.size})
        return [documents.tokens + 1 for documents in documents_of(files, record)]


def _groups(
    manifest: Manifest,
    records: Sequence[PartRecord],
    counts: Sequence[int],
    choice: Choice,
    seed: int | None,
) -> Iterator[tuple[OriginalPart, ...]]:
    """The parts of the dataset that each part of the subset is made of, in order.

    A part that gives nothing is left out; those of whole files go together until they fill a shard,
    or those of the next dataset begin that was merged, or of the next generation.
    """
    borders = np.cumsum([member.parts for member in manifest.members])

    def member_of(part: int) -> int:
        return int(np.searchsorted(borders, part, side="right"))

    group: list[OriginalPart] = []
    held, first, num_spans = 0, 0, 0
    room = manifest.spec.shard_size // np.dtype(manifest.spec.dtype).itemsize
    for record, count in zip(records, counts, strict=True):
        taken = _taken(first, count, choice, seed)
        original = OriginalPart(part=record.part, first=first)
        first += count
        if not taken:
            continue
        tokens = sum(split.tokens for split in record.splits.values()) * taken // count
        alone = any(source_span.span is not None for source_span in record.made_of) or bool(
            record.spec.keep_columns
        )
        other = bool(group) and member_of(group[0].part) != member_of(record.part)
        full = held + tokens > room or num_spans + len(record.made_of) > _MOST_SPANS
        if group and (alone or other or full):
            yield tuple(group)
            group, held, num_spans = [], 0, 0
        if alone:
            yield (original,)
            continue
        group.append(original)
        held, num_spans = held + tokens, num_spans + len(record.made_of)
    if group:
        yield tuple(group)


def _taken(first: int, count: int, choice: Choice, seed: int | None) -> int:
    """How many of some consecutive documents are taken."""
    return sum(
        int(chosen(begin, min(_AT_ONCE, first + count - begin), choice, seed).sum())
        for begin in range(first, first + count, _AT_ONCE)
    )


def _members(
    manifest: Manifest, groups: Sequence[Sequence[OriginalPart]], rule: SubsetRule
) -> tuple[MergedDataset, ...]:
    """What a subset of a merged dataset says that it was merged of."""
    members, before = [], 0
    for member in manifest.members:
        after = before + member.parts
        own = sum(before <= group[0].part < after for group in groups)
        spec = member.spec.model_copy(update={"subset": rule})
        members.append(member.model_copy(update={"parts": own, "spec": spec}))
        before = after
    return tuple(members)


def _part(number: int, group: Sequence[OriginalPart], records: Sequence[PartRecord]) -> Part:
    size = sum(
        shard.size
        for original in group
        for split in records[original.part].splits.values()
        for shard in split.shards
    )
    return Part.whole(number, SourceFile(url=records[group[0].part].source.url, size=size))
