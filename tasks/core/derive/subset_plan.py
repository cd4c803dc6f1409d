"""What a subset has to do: which documents, in which parts, and which parts the output holds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import NotADatasetError, UsageError
from streaming_ext.format.layout import MANIFEST, record_path
from streaming_ext.format.manifest import Manifest, MergedDataset
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.spec import DatasetSpec, SubsetRule
from streaming_ext.store import Storage, open_storage
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.writing.publish import publish_splits
from tasks.core.build.build import Build, OnStatus, Published, Recorded, Stretch, Words
from tasks.core.build.engine import compare
from tasks.core.build.outside import require_outside
from tasks.core.derive.choosing import Choice, choose, chosen
from tasks.core.derive.config import SubsetConfig
from tasks.core.derive.merging import require_divisible
from tasks.core.derive.move import FileGroup, Move, put_group
from tasks.core.derive.subset_part import OriginalPart, SubsetJob, documents_of
from tasks.core.reading.dataset_files import DatasetFiles, read_dataset, read_records
from tasks.core.shard.dataset_layout import beside_parts
from tasks.core.shard.plan import scratch_folder
from tasks.core.shard.publish import all_recorded, published_dataset

_IO_THREADS = 8
_MOST_SPANS = 1000  # of a part of the subset
_BLOCK = 2**20  # documents
# A run plans several times: the last choice, by the manifest's hash and the configuration.
_choices: dict[tuple[str, int | None, int | None, int | None], Choice] = {}


@dataclass(frozen=True, kw_only=True)
class SubsetBuild(Build):
    """Some documents of a published dataset, as one of their own.

    Attributes:
        dataset: that the documents are of.
        original: its manifest.
        spec: of the subset.
        members: what the subset says that it was merged of.
        specs: of each part of the subset.
        originals: the parts of the dataset that each is made of.
        largest: chosen key; see `tasks.core.derive.choosing`.
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
        parts = {
            number: [*map(Stretch.of, record.files())]
            for number, record in read_records(output).items()
            if number < len(self.specs) and record.spec == self.specs[number]
        }
        return Recorded(output, parts)

    def beside(self, output: Storage) -> Mapping[str, int]:
        """What the published subset holds besides its parts."""
        return {file.path: file.size for file in beside_parts(read_manifest(output))}

    def remove_leftovers(self, output: Storage) -> None:
        """Remove the records of the parts that are left to do."""
        for number in self.todo:
            output.remove(record_path(number))

    def finish(self, output: Storage, tell: OnStatus) -> Published:
        """Put the indexes and the tokenizer."""
        tell("reading the records")
        records = all_recorded(output, len(self.parts))
        tell("putting the indexes")
        splits = publish_splits(self.spec, records, output)
        tell("putting the tokenizer")
        root, files = str(self.dataset), self.original.tokenizer_files
        group = FileGroup(moves=tuple(Move.of(root, file) for file in files))
        put_group(group, output, self.scratch / "rest", read=True)
        manifest = Manifest(
            spec=self.spec,
            parts=tuple(record.summary() for record in records),
            splits=splits,
            tokenizer_files=files,
            node_partition=self.original.node_partition,
            merged=self.members,
        )
        return published_dataset(manifest, records)

    def job(self, step: str, number: int, output: Storage, results: Mapping[str, Any]) -> SubsetJob:
        """What a worker does for a part."""
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
    config: SubsetConfig, output: Storage, tell: OnStatus = lambda words: None
) -> SubsetBuild:
    """What a subset has to do; nothing is written.

    Raises:
        UsageError: the dataset has too few documents, or the output holds something else.
        ConfigMismatchError: another subset was started or made there.
        DatasetError: there is no dataset, or it is damaged.
    """
    require_outside(output)
    dataset = open_storage(config.dataset)
    if str(dataset) == str(output):
        raise UsageError(f"{output} is the dataset itself. Use another --output.")
    _, manifest, records = read_dataset(dataset)
    require_divisible(
        dataset,
        manifest,
        "a subset would not be. Take the subset of a dataset of the same sources that is not, or "
        "export it.",
    )
    if any(spec.subset for spec in (manifest.spec, *(each.spec for each in manifest.merged))):
        raise UsageError(
            f"{dataset} is a subset itself, or merged of one. Take one of the original dataset."
        )
    content = FileRecord.of(MANIFEST, to_json(manifest)).xxh128
    choice = _choose(config, dataset, records, content)
    rule = SubsetRule(of=content, documents=choice.documents, seed=config.chosen_by)
    groups = [*_groups(manifest, records, choice.largest, config.chosen_by)]
    build = SubsetBuild(
        config=config,
        dataset=dataset,
        original=manifest,
        spec=manifest.spec.model_copy(update={"subset": rule}),
        members=tuple(_members(manifest, groups, rule)),
        specs=tuple(
            manifest.spec_of(group[0].part).model_copy(update={"subset": rule}) for group in groups
        ),
        originals=tuple(groups),
        parts=tuple(_part(number, group, records) for number, group in enumerate(groups)),
        largest=choice.largest,
        scratch=scratch_folder(config, output),
    )
    return compare(build, output)


def _count(record: PartRecord) -> int:
    return sum(split.documents for split in record.splits.values())


def _choose(
    config: SubsetConfig, dataset: Storage, records: Sequence[PartRecord], content: str
) -> Choice:
    """The documents that the configuration asks for; `content` is the manifest's hash."""
    total = sum(map(_count, records))
    tokens = sum(split.tokens for record in records for split in record.splits.values())
    wanted, most_tokens = config.documents, config.most_tokens
    key = content, wanted, most_tokens, config.chosen_by
    for noun, most, held in (("documents", wanted, total), ("tokens", most_tokens, tokens)):
        if most is None or key in _choices:
            continue
        if most > held:
            raise UsageError(f"{dataset} has {held:,} {noun}, --{noun} asks for {most:,}.")
        weights: Iterable[Ints] = _Lengths(dataset, records)
        if noun == "documents":
            sizes = [min(_BLOCK, total - first) for first in range(0, total, _BLOCK)]
            weights = [np.broadcast_to(np.int64(1), size) for size in sizes]
        choice = choose(weights, total, most, config.chosen_by)
        if not choice.documents:
            raise UsageError(f"The first document has more than {most:,} tokens. Raise --tokens.")
        _choices.clear()
        _choices[key] = choice
    return _choices[key]


class _Lengths:
    """Tokens of all documents, with their end-of-text ids; read each time they are iterated."""

    def __init__(self, dataset: Storage, records: Sequence[PartRecord]) -> None:
        self._dataset, self._records = dataset, records

    def __iter__(self) -> Iterator[Ints]:
        with ThreadPoolExecutor(_IO_THREADS) as threads:
            for first in range(0, len(self._records), _IO_THREADS):  # few are held at a time
                for blocks in threads.map(self._of, self._records[first : first + _IO_THREADS]):
                    yield from blocks

    def _of(self, record: PartRecord) -> list[Ints]:
        files = DatasetFiles(self._dataset, {record.documents.path: record.documents.size})
        return [documents.tokens + 1 for documents in documents_of(files, record)]


def _groups(
    manifest: Manifest, records: Sequence[PartRecord], largest: int, seed: int | None
) -> Iterator[tuple[OriginalPart, ...]]:
    """The parts of the dataset that each part of the subset is made of, in order.

    A part without chosen documents is left out. Parts of whole files go together until they fill a
    shard, but not across datasets that were merged, or generations.
    """
    ends = np.cumsum([member.parts for member in manifest.members])
    group: list[OriginalPart] = []
    first = tokens = spans = member = 0
    room = manifest.spec.shard_size // np.dtype(manifest.spec.dtype).itemsize
    for record in records:
        count, begin = _count(record), first
        first += count
        taken = sum(
            int(chosen(block, min(_BLOCK, first - block), largest, seed).sum())
            for block in range(begin, first, _BLOCK)
        )
        if not taken:
            continue
        of_member = int(np.searchsorted(ends, record.part, side="right"))
        more = sum(split.tokens for split in record.splits.values()) * taken // count
        is_alone = bool(record.spec.keep_columns) or record.made_of[0].span is not None
        is_full = tokens + more > room or spans + len(record.made_of) > _MOST_SPANS
        if group and (is_alone or is_full or of_member != member):
            yield tuple(group)
            group, tokens, spans = [], 0, 0
        group.append(OriginalPart(part=record.part, first=begin))
        tokens, spans, member = tokens + more, spans + len(record.made_of), of_member
        if is_alone:
            spans = _MOST_SPANS
    if group:
        yield tuple(group)


def _members(
    manifest: Manifest, groups: Sequence[Sequence[OriginalPart]], rule: SubsetRule
) -> Iterator[MergedDataset]:
    """What a subset of a merged dataset says that it was merged of."""
    begin = 0
    for member in manifest.members:
        own = sum(begin <= group[0].part < begin + member.parts for group in groups)
        spec = member.spec.model_copy(update={"subset": rule})
        yield member.model_copy(update={"parts": own, "spec": spec})
        begin += member.parts


def _part(number: int, group: Sequence[OriginalPart], records: Sequence[PartRecord]) -> Part:
    splits = [split for each in group for split in records[each.part].splits.values()]
    size = sum(shard.size for split in splits for shard in split.shards)
    return Part.whole(number, SourceFile(url=records[group[0].part].source.url, size=size))
