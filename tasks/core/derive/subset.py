"""Some documents of a published dataset, as one of their own: the plan, and the job for a part."""

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.condition import Condition
from streaming_ext.format.duplicates import codes
from streaming_ext.format.layout import MANIFEST, SPLITS, Split, documents_path, record_path
from streaming_ext.format.manifest import Manifest, MergedDataset
from streaming_ext.format.provenance import KEPT_PREFIX, require_columns
from streaming_ext.format.record import MOST_BAD_LISTED, PartRecord, RowCounts, SplitPart
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.spec import DatasetSpec, NearRule, SubsetRule
from streaming_ext.store import LocalStorage, Storage, open_storage, uploads
from streaming_ext.store.scratch import new_folder
from streaming_ext.text.documents.columns import untyped_if_null
from streaming_ext.text.parts import Part
from streaming_ext.text.sketches import sketches_of
from streaming_ext.text.sources import SourceFile
from streaming_ext.writing.part_files import Origins, PartFiles
from streaming_ext.writing.publish import publish_splits
from streaming_ext.writing.tokenize import emptied
from tasks.core.derive.choosing import Choice, choose, chosen
from tasks.core.derive.config import SubsetConfig
from tasks.core.engine.build import DerivedBuild, OnStatus, Published, Recorded, Words
from tasks.core.engine.lifecycle import compare
from tasks.core.engine.output_files import Stretch, all_recorded, hash_of
from tasks.core.engine.outside import open_other, scratch_folder
from tasks.core.reading.dataset_files import (
    DatasetFiles,
    naming,
    read_dataset,
    read_dataset_manifest,
    read_recorded,
    read_records,
    recorded_sizes,
)
from tasks.core.reading.dataset_layout import added_before, existing_manifest
from tasks.core.reading.documents import PartOfDataset, listed_documents
from tasks.core.shard.publish import published_dataset
from tasks.core.shuffle.near import NearCopies
from tasks.core.shuffle.records import identity_of_table, shard_bytes
from tasks.core.shuffle.sort import (
    MOST_DIGEST_BYTES,
    SortedSpills,
    sketches_schema,
    spill_sketches,
    without_bos,
)
from tasks.core.shuffle.spills import SpillIndex, digests_path
from tasks.core.workers.messages import Job, JobProgress, MadePart, Message, Report, WorkerCache

_MOST_SPANS = 1000  # of a part of the subset
_BLOCK = 2**20  # documents


class OriginalPart(Message):
    """A part of the dataset that gives documents.

    Attributes:
        part: the number of the part.
        first: the number of the first document of the part.
        distinct: a bit per document, in Base64, set if it stays; None unless near copies go.
    """

    part: int
    first: int
    distinct: str | None = None


class SubsetJob(Job[MadePart]):
    """Write one part of a subset and record it.

    Attributes:
        part: the number of the part.
        originals: the parts of the dataset that it is made of.
        dataset: URL of the dataset.
        manifest: the manifest of the dataset.
        largest: the largest chosen key; see `tasks.core.derive.choosing`.
        spec: the specification of the part, with the rule that chooses the documents.
        output: URL of the subset.
        scratch: folder for the part's files before they are put in place.
    """

    part: int
    originals: tuple[OriginalPart, ...]
    dataset: str
    manifest: FileRecord
    largest: int
    spec: DatasetSpec
    output: str
    scratch: Path

    def do(self, cache: WorkerCache, report: Report) -> MadePart:
        """Write the part.

        Raises:
            CorruptDatasetError: the dataset is damaged.
            StorageError: the output or scratch is full, gone or not writable.
        """
        began, scratch = time.monotonic(), self.scratch
        dataset, output = cache.storage(self.dataset), cache.storage(self.output)
        manifest = cache.latest(read_dataset_manifest, dataset, self.manifest)
        with emptied(scratch):
            files = PartFiles(scratch, self.part, self.spec, cache.memories)
            records, rows = [], 0
            for number, original in enumerate(self.originals):
                part = PartOfDataset(dataset, manifest, original.part)
                self._add(part, files, original, rows_before=rows)
                records.append(part.record)
                if manifest.shuffled is None:
                    rows += part.record.rows
                report(JobProgress(fraction=(number + 1) / len(self.originals)))
            made = self._record(manifest, records, files.finish(), scratch)
        with uploads(output) as put:
            for file in made.files():
                put(file.path, scratch / file.path)
        output.put(record_path(self.part), to_json(made))
        return MadePart(
            documents=made.documents_kept,
            tokens=made.tokens_kept,
            size=sum(file.size for file in made.files()),
            seconds=time.monotonic() - began,
        )

    def _add(
        self, part: PartOfDataset, files: PartFiles, original: OriginalPart, *, rows_before: int
    ) -> None:
        """Add the chosen documents of one part of the dataset."""
        listed, rule = listed_documents(part.files, part.record, values=True), self.spec.subset
        assert rule is not None  # noqa: S101  (it makes the part)
        taken = chosen(original.first, len(listed), self.largest, rule.seed)
        if original.distinct is not None:
            bits = np.frombuffer(b64decode(original.distinct), np.uint8)
            taken &= np.unpackbits(bits, count=len(listed)) == 1
        if rule.where is not None:
            taken &= part.where(Condition(rule.where))
        for name, column in part.added().items():
            listed = listed.append_column(f"{KEPT_PREFIX}{name}", untyped_if_null(column))
        is_shuffled = self.spec.shuffle is not None
        for block in listed.filter(pa.array(taken)).to_batches(_BLOCK):
            columns = {name: block[name].to_numpy() for name in ("source", "place")}
            files.documents.add(
                block["row"].to_numpy() + rows_before,
                block["tokens"].to_numpy(),
                block["split"].to_numpy() == SPLITS.index("holdout"),
                Origins(columns["source"], columns["place"]) if is_shuffled else None,
                [block[f"{KEPT_PREFIX}{name}"] for name in self.spec.keep_columns],
            )
        splits, lengths = listed["split"].to_numpy(), listed["tokens"].to_numpy()
        for split in part.record.splits:
            own = splits == SPLITS.index(split)
            if taken[own].any():
                self._pack(part, split, files, lengths[own], taken[own])

    def _pack(
        self, part: PartOfDataset, split: Split, files: PartFiles, lengths: Ints, taken: Flags
    ) -> None:
        """Pack the documents of a split that are `taken`, (documents,).

        Raises:
            CorruptDatasetError: a shard is missing or damaged, or documents end elsewhere.
        """
        first = 0
        for block in part.documents(split):
            own = slice(first, first + len(block.ends))
            first = own.stop
            if not np.array_equal(block.lengths, lengths[own] + 1):
                with naming(part.files, part.record.documents.path):
                    raise CorruptDatasetError(f"documents of {split} do not end where it says")
            if taken[own].any():
                stream = block.stream[np.repeat(taken[own], block.lengths)]
                files.pack(split, stream, int(taken[own].sum()))
            if not taken[first:].any():
                return

    def _record(
        self,
        manifest: Manifest,
        records: list[PartRecord],
        splits: dict[Split, SplitPart],
        scratch: Path,
    ) -> PartRecord:
        kept = sum(split.documents for split in splits.values())
        source, spans = records[0].source, records[0].spans
        if manifest.shuffled is not None:
            source = identity_of_table(manifest.shuffled.sources)  # of all generations
        elif len(records) > 1:
            spans = tuple(span for record in records for span in record.made_of)
        bad = [each for record in records for each in record.bad_listed]
        path = documents_path(self.part)
        return PartRecord(
            part=self.part,
            spec=self.spec,
            source=source,
            spans=spans,
            **dict(RowCounts.total(records)),
            bad_listed=tuple(bad[:MOST_BAD_LISTED]),
            text_bytes=0,
            splits=splits,
            documents=FileRecord.of(path, (scratch / path).read_bytes()),
            unchosen_documents=sum(record.rows - record.left_out for record in records) - kept,
        )


@dataclass(frozen=True, kw_only=True)
class SubsetBuild(DerivedBuild):
    """Some documents of a published dataset, as one of their own.

    Attributes:
        dataset: the dataset that the documents belong to.
        original: the manifest of the dataset.
        spec: the specification of the subset.
        members: the datasets that the subset says it was merged from.
    """

    config: SubsetConfig
    dataset: Storage
    original: Manifest
    spec: DatasetSpec
    members: tuple[MergedDataset, ...]
    jobs: tuple[SubsetJob, ...] = ()
    kind: str = "subset"

    words: ClassVar[Words] = Words("taking documents", "taken")

    @property
    def identity(self) -> DatasetSpec:
        """The specification, with the rule that chooses the documents."""
        return self.spec

    def is_published(self, output: Storage) -> bool:
        """Return whether the output has the manifest of this subset."""
        if (held := existing_manifest(output)) is None:
            return False
        held.spec.require_same(self.spec, where=str(output))
        return True

    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """The parts that are recorded."""
        parts = {
            number: [*map(Stretch.of, record.files())]
            for number, record in read_records(output).items()
            if number < len(self.jobs) and record.spec == self.jobs[number].spec
        }
        return Recorded(storage=output, parts=parts)

    def finish(self, output: Storage, on_status: OnStatus) -> Published:
        """Put the indexes and the tokenizer."""
        on_status("reading the records")
        records = all_recorded(read_records(output), range(len(self.parts)), output)
        on_status("putting the indexes")
        splits = publish_splits(self.spec, records, output)
        on_status("putting the tokenizer")
        files, shuffled = self.original.tokenizer_files, self.original.shuffled
        for file in (*files, *([] if shuffled is None else [shuffled.sources])):
            output.put(file.path, read_recorded(self.dataset, file))
        manifest = Manifest(
            spec=self.spec,
            parts=tuple(record.summary() for record in records),
            splits=splits,
            tokenizer_files=files,
            node_partition=self.original.node_partition,
            shuffled=shuffled,
            merged=self.members,
            added=added_before(output),
        )
        return published_dataset(manifest, records)


def plan_subset(
    config: SubsetConfig, output: Storage, on_status: OnStatus = lambda words: None
) -> SubsetBuild:
    """Plan a subset; nothing is written.

    Raises:
        UsageError: the dataset has too few documents, or the output holds something else.
        ConfigMismatchError: another subset was started or made there.
        DatasetError: there is no dataset, or it is damaged.
    """
    dataset = open_other(config.dataset, output)
    return compare(_subset(config, hash_of(dataset, MANIFEST)), output)


@lru_cache(1)  # a run plans before and after it takes the output; a choice may read all lists
def _subset(config: SubsetConfig, _: str | None) -> SubsetBuild:
    """The subset of a dataset with this hash of its manifest."""
    dataset = open_storage(config.dataset)
    _files, manifest, records = read_dataset(dataset)
    held = _candidates(config, dataset, manifest)
    choice, seed = _choose(config, dataset, records, held), config.chosen_by
    file = FileRecord.of(MANIFEST, to_json(manifest))
    specs = [manifest.spec, *(each.spec for each in manifest.merged)]
    of_sources = set(manifest.columns).intersection(*(spec.source_columns for spec in specs))
    rule = SubsetRule(
        of=file.xxh128,
        documents=choice.documents,
        seed=seed,
        where=config.where,
        added=tuple(name for name in manifest.columns if name not in of_sources) or None,
        near=config.near,
    )
    ruled = {"subset": rule, "keep_columns": manifest.columns}
    # A part of the subset is of one of the datasets that were merged, or of one generation.
    ends = accumulate([each.parts for each in manifest.members] or [len(records)], initial=0)
    firsts = [*accumulate((record.documents_kept for record in records), initial=0)]
    taken = [
        int((chosen(first, record.documents_kept, choice.largest, seed) & held(record)).sum())
        for first, record in zip(firsts, records, strict=False)
    ]
    grouped = [[*_groups(records[begin:end], firsts, taken)] for begin, end in pairwise(ends)]
    groups = [*chain(*grouped)]
    members = [
        member.model_copy(update={"parts": len(own), "spec": member.spec.model_copy(update=ruled)})
        for member, own in zip(manifest.members, grouped, strict=False)
    ]

    def with_flags(original: OriginalPart) -> OriginalPart:
        bits = b64encode(np.packbits(held(records[original.part])).tobytes())
        return original.model_copy(update={"distinct": bits.decode()})

    output = open_storage(config.output)
    build = SubsetBuild(
        config=config,
        dataset=dataset,
        original=manifest,
        spec=manifest.spec.model_copy(update=ruled),
        members=tuple(members),
        parts=tuple(_part(number, group, records) for number, group in enumerate(groups)),
        scratch=scratch_folder(config, output),
    )
    jobs = [
        SubsetJob(
            part=number,
            originals=group if config.near is None else tuple(map(with_flags, group)),
            dataset=str(dataset),
            manifest=file,
            largest=choice.largest,
            spec=manifest.spec_of(group[0].part).model_copy(update=ruled),
            output=str(output),
            scratch=build.part_scratch(number),
        )
        for number, group in enumerate(groups)
    ]
    return replace(build, jobs=tuple(jobs))


Candidates = Callable[[PartRecord], Flags]  # flags of the documents of a part, (documents,)


def _candidates(config: SubsetConfig, dataset: Storage, manifest: Manifest) -> Candidates:
    """Find the documents for which the condition holds, all without one.

    Raises:
        UsageError: the condition names a column that there is not, or holds for no document.
    """
    condition = config.condition
    candidates: Candidates = lambda record: np.ones(record.documents_kept, np.bool_)  # noqa: E731
    if condition is not None:
        candidates = _of_condition(condition, dataset, manifest)
    if config.near is not None:
        candidates = _distinct(config.near, dataset, manifest, candidates)
    return candidates


def _of_condition(condition: Condition, dataset: Storage, manifest: Manifest) -> Candidates:
    """Find the documents for which the condition holds."""
    require_columns(condition, manifest.columns, where=str(dataset))

    def packed(number: int) -> npt.NDArray[np.uint8]:
        return np.packbits(PartOfDataset(dataset, manifest, number).where(condition))

    flags = [*mapped_ahead(packed, range(len(manifest.parts)))]  # a bit per document
    if not any(each.any() for each in flags):
        raise UsageError(f"--where {condition.text!r} holds for no document of {dataset}.")
    return lambda record: np.unpackbits(flags[record.part], count=record.documents_kept) == 1


def _distinct(
    rule: NearRule, dataset: Storage, manifest: Manifest, candidates: Candidates
) -> Candidates:
    """Find the candidates that are no near copies of earlier ones; their ids are read.

    This process sketches them one part after another.
    """
    named: list[Ints] = []  # codes of the documents of each part, in the order of the list
    with new_folder() as folder:
        path_of = partial(digests_path, 0)
        spills = SortedSpills(folder, path_of, sketches_schema(rule), most=MOST_DIGEST_BYTES)
        for number in range(len(manifest.parts)):
            part = PartOfDataset(dataset, manifest, number)
            listed, wanted = listed_documents(part.files, part.record), candidates(part.record)
            groups, rows = listed["source"].to_numpy(), listed["row"].to_numpy()
            named.append(codes(groups, rows))
            for at, block in part.blocks(listed):
                ends, begins = block.ends - 1, block.ends - block.lengths
                begins = without_bos(block.stream, begins, manifest.spec.tokenizer.bos_id)
                own = wanted[at]
                names = groups[at[own]], rows[at[own]], np.zeros(int(own.sum()), np.uint64)
                sketches = sketches_of(block.stream, begins[own], ends[own], rule)
                spill_sketches(spills, names, sketches, rule)
        index = SpillIndex.of(spills.finish())
        near = NearCopies.found(LocalStorage(folder), index, iter(()), rule)
    return lambda record: candidates(record) & ~near.look_up(named[record.part])[0]


def _choose(
    config: SubsetConfig, dataset: Storage, records: Sequence[PartRecord], held: Candidates
) -> Choice:
    """The documents that the configuration asks for."""

    def weights() -> Iterator[Ints]:
        if config.tokens is None:
            return (held(record).astype(np.int64) for record in records)
        return (
            lengths * held(record)
            for record, lengths in zip(records, _lengths(dataset, records), strict=True)
        )

    total, most = sum(record.documents_kept for record in records), config.most
    choice = choose(weights, total, most, config.chosen_by)
    noun = "documents" if config.tokens is None else "tokens"
    if not config.takes_all and most > choice.candidates:
        among = "" if config.where is None else f" for which {config.where!r} holds"
        raise UsageError(
            f"{dataset} has {choice.candidates:,} {noun}{among}, --{noun} asks for {most:,}."
        )
    if not choice.documents:
        raise UsageError(f"The first document has more than {most:,} tokens. Raise --tokens.")
    return choice


def _lengths(dataset: Storage, records: Sequence[PartRecord]) -> Iterator[Ints]:
    """Tokens of all documents, with their end-of-text ids, a part at a time."""

    def of(record: PartRecord) -> Ints:
        files = DatasetFiles(dataset, recorded_sizes([record.documents]))
        lengths: Ints = listed_documents(files, record)["tokens"].to_numpy() + 1
        return lengths

    return mapped_ahead(of, records)


def _groups(
    records: Sequence[PartRecord], firsts: Sequence[int], taken: Sequence[int]
) -> Iterator[tuple[OriginalPart, ...]]:
    """The parts of the dataset that each part of the subset is made of, in order.

    A part without chosen documents is left out. Parts of complete files go together until they fill
    a shard.

    Args:
        records: the records of the parts.
        firsts: the number of the first document of each part.
        taken: the number of chosen documents of each part.
    """
    group: list[OriginalPart] = []
    tokens = spans = 0
    for record in records:
        if not (count := taken[record.part]):
            continue
        more = record.tokens_kept * count // record.documents_kept
        room = record.spec.shard_size
        is_alone = bool(record.spec.keep_columns) or record.made_of[0].span is not None
        is_full = (tokens + more) * np.dtype(record.spec.dtype).itemsize > room
        if group and (is_alone or is_full or spans + len(record.made_of) > _MOST_SPANS):
            yield tuple(group)
            group, tokens, spans = [], 0, 0
        group.append(OriginalPart(part=record.part, first=firsts[record.part]))
        tokens, spans = tokens + more, spans + len(record.made_of)
        if is_alone:
            spans = _MOST_SPANS
    if group:
        yield tuple(group)


def _part(number: int, group: Sequence[OriginalPart], records: Sequence[PartRecord]) -> Part:
    size = sum(shard_bytes(records[each.part]) for each in group)
    return Part.whole(number, SourceFile(url=records[group[0].part].source.url, size=size))
