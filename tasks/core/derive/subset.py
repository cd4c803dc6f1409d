"""A subset of the documents of a published dataset: the plan, and the job for a part."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.condition import Condition
from streaming_ext.format.duplicates import ROW_BITS, NearDuplicates, duplicates_path
from streaming_ext.format.layout import MANIFEST, SPLITS, Split, documents_path, record_path
from streaming_ext.format.manifest import Manifest, MergedDataset
from streaming_ext.format.provenance import KEPT_PREFIX, require_columns
from streaming_ext.format.record import MOST_BAD_LISTED, PartRecord, RowCounts, SplitPart
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.spec import DatasetSpec, SubsetRule
from streaming_ext.store import Storage, open_storage, uploads
from streaming_ext.text.documents.columns import untyped_if_null
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.writing.part_files import Origins, PartFiles
from streaming_ext.writing.publish import publish_splits
from streaming_ext.writing.tokenize import emptied
from tasks.core.derive.choosing import Choice, choose, chosen
from tasks.core.derive.config import SubsetConfig
from tasks.core.derive.distinct import Candidates, DistinctDocuments, unpacked
from tasks.core.engine.build import DerivedBuild, OnStatus, Published, Recorded, Words
from tasks.core.engine.lifecycle import compare
from tasks.core.engine.output_files import (
    Stretch,
    all_recorded,
    hash_of,
    open_other,
    scratch_folder,
)
from tasks.core.reading.dataset_files import (
    DatasetFiles,
    added_before,
    existing_manifest,
    naming,
    read_dataset,
    read_dataset_manifest,
    read_recorded,
    read_records,
)
from tasks.core.reading.documents import PartOfDataset, listed_documents
from tasks.core.shard.publish import published_dataset
from tasks.core.shuffle.spills import identity_of_table, shard_bytes
from tasks.core.workers.messages import Job, JobProgress, MadePart, Message, Report, WorkerCache

_MOST_SPANS = 1000  # per part of the subset
_BLOCK = 2**20  # documents
_NONE: Final = np.empty((3, 0), np.int64)  # no copies


class OriginalPart(Message):
    """A part of the dataset, and the choice of its documents.

    Attributes:
        part: the number of the part.
        taken: a bit per document, set if it is chosen.
        copies: the near copies to list, as 64-bit integers: their positions, the `codes` of their
            witnesses in the subset, and the number of bins in which both agree: (3, copies).
    """

    part: int
    taken: bytes
    copies: bytes


class SubsetJob(Job[MadePart]):
    """Write one part of a subset, and its record.

    Attributes:
        part: the number of the part.
        originals: the parts of the dataset that the part is made of.
        dataset: the URL of the dataset.
        manifest: the manifest of the dataset.
        spec: the specification of the part, with the rule that chooses the documents.
        output: the URL of the subset.
        scratch: the folder for the part's files before they are put.
    """

    part: int
    originals: tuple[OriginalPart, ...]
    dataset: str
    manifest: FileRecord
    spec: DatasetSpec
    output: str
    scratch: Path

    def do(self, cache: WorkerCache, report: Report) -> MadePart:
        """Write the part.

        Raises:
            CorruptDatasetError: the dataset is damaged.
            StorageError: the output or scratch is full, gone or not writable.
        """
        scratch = self.scratch
        dataset, output = cache.storage(self.dataset), cache.storage(self.output)
        manifest = cache.latest(read_dataset_manifest, dataset, self.manifest)
        with emptied(scratch):
            files = PartFiles(scratch, self.part, self.spec, cache.memories)
            records, copies, rows = [], [NearDuplicates.joined([])], 0
            for number, original in enumerate(self.originals):
                part = PartOfDataset(dataset, manifest, original.part)
                copies.append(self._add(part, files, original, rows_before=rows))
                records.append(part.record)
                if manifest.shuffled is None:
                    rows += part.record.rows
                report(JobProgress(fraction=(number + 1) / len(self.originals)))
            left_out = NearDuplicates.joined(copies)
            made = self._record(manifest, records, files.finish(), left_out)
        with uploads(output) as put:
            for file in made.files():
                put(file.path, scratch / file.path)
        output.put(record_path(self.part), to_json(made))
        return MadePart(
            documents=made.documents_kept,
            tokens=made.tokens_kept,
            size=sum(file.size for file in made.files()),
        )

    def _add(
        self, part: PartOfDataset, files: PartFiles, original: OriginalPart, *, rows_before: int
    ) -> NearDuplicates:
        """Add the chosen documents of one part of the dataset; return the copies to list."""
        listed = listed_documents(part.files, part.record, values=True)
        taken = unpacked(np.frombuffer(original.taken, np.uint8), len(listed))
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
        return self._copies(listed, original, rows_before=rows_before)

    def _copies(
        self, listed: pa.Table, original: OriginalPart, *, rows_before: int
    ) -> NearDuplicates:
        """Return the near copies of a part, as listed in the subset."""
        if (rule := self.spec.listed_near) is None:
            return NearDuplicates.joined([])
        found = np.frombuffer(original.copies, np.int64).reshape(3, -1)
        copies, (_, witnesses, matches) = listed.take(pa.array(found[0])), found
        groups = copies["source"].to_numpy()
        return NearDuplicates(
            groups=groups if self.spec.shuffle else np.full_like(groups, self.part),
            rows=copies["row"].to_numpy() + rows_before,
            tokens=copies["tokens"].to_numpy(),
            first_groups=witnesses >> ROW_BITS,
            first_rows=witnesses & (2**ROW_BITS - 1),
            similarities=rule.similarity_of(matches),
        )

    def _pack(
        self, part: PartOfDataset, split: Split, files: PartFiles, lengths: Ints, taken: Flags
    ) -> None:
        """Pack the documents of a split that are `taken`, (documents,).

        Raises:
            CorruptDatasetError: a shard is missing or damaged, or a document's length is wrong.
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
        copies: NearDuplicates,
    ) -> PartRecord:
        kept = sum(split.documents for split in splits.values()) + len(copies.rows)
        source, spans = records[0].source, records[0].spans
        if manifest.shuffled is not None:
            source = identity_of_table(manifest.shuffled.sources)  # of all generations
        elif len(records) > 1:
            spans = tuple(span for record in records for span in record.made_of)
        bad = [each for record in records for each in record.bad_listed]
        path, duplicates = documents_path(self.part), None
        if self.spec.lists_copies:
            file = self.scratch / duplicates_path(self.part)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(copies.to_bytes(shuffled=manifest.shuffled is not None))
            duplicates = FileRecord.of(duplicates_path(self.part), file.read_bytes())
        return PartRecord(
            part=self.part,
            spec=self.spec,
            source=source,
            spans=spans,
            **dict(RowCounts.total(records)),
            bad_listed=tuple(bad[:MOST_BAD_LISTED]),
            text_bytes=0,
            splits=splits,
            documents=FileRecord.of(path, (self.scratch / path).read_bytes()),
            duplicate_documents=len(copies.rows),
            duplicate_tokens=int((copies.tokens + 1).sum()),
            duplicates=duplicates,
            unchosen_documents=sum(record.rows - record.left_out for record in records) - kept,
        )


@dataclass(frozen=True, kw_only=True)
class SubsetBuild(DerivedBuild):
    """The build of a subset.

    Attributes:
        dataset: the dataset that the documents are from.
        original: the manifest of the dataset.
        spec: the specification of the subset.
        members: the members that the subset's manifest lists; empty unless merged or extended.
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
        """The specification of the subset, with the rule that chooses the documents."""
        return self.spec

    def is_published(self, output: Storage) -> bool:
        """Return whether the output has the manifest of this subset."""
        if (held := existing_manifest(output)) is None:
            return False
        held.spec.require_same(self.spec, where=str(output))
        return True

    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """Return the parts of this subset that are recorded."""
        parts = {
            number: [*map(Stretch.of, record.files())]
            for number, record in read_records(output).items()
            if number < len(self.jobs) and record.spec == self.jobs[number].spec
        }
        return Recorded(storage=output, parts=parts)

    def finish(self, output: Storage, on_status: OnStatus) -> Published:
        """Put the indexes, the tokenizer and, with a shuffle, the table of sources."""
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
        ConfigMismatchError: the output holds another subset, started or finished.
        DatasetError: there is no dataset, or it is damaged.
    """
    dataset = open_other(config.dataset, output)
    return compare(_subset(config, hash_of(dataset, MANIFEST)), output)


@lru_cache(1)  # a run plans before and after it takes the output; a choice may read all lists
def _subset(config: SubsetConfig, _: str | None) -> SubsetBuild:
    """Plan the subset; the hash of the dataset's manifest is a key of the cache."""
    dataset = open_storage(config.dataset)
    _files, manifest, records = read_dataset(dataset)
    held, distinct = _of_condition(config.condition, dataset, manifest, records), None
    if config.near is not None:
        distinct = DistinctDocuments.of(dataset, manifest, config.near, held)
        held = distinct.flags
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
    firsts = [*accumulate((record.documents_kept for record in records), initial=0)]

    def taken_of(record: PartRecord) -> Flags:
        first, count = firsts[record.part], record.documents_kept
        return chosen(first, count, choice.largest, seed) & held(record)

    taken = packed(map(taken_of, records))
    copies = [_NONE for _ in records] if distinct is None else distinct.left_out(records, taken)
    counts = [int(taken(record).sum()) for record in records]
    # A part of the subset is made from one member of a merged dataset, or from one generation.
    ends = accumulate([each.parts for each in manifest.members] or [len(records)], initial=0)
    grouped = [[*_groups(records[begin:end], counts, copies)] for begin, end in pairwise(ends)]
    groups = [*chain(*grouped)]
    members = [
        member.model_copy(update={"parts": len(own), "spec": member.spec.model_copy(update=ruled)})
        for member, own in zip(manifest.members, grouped, strict=False)
    ]
    if manifest.shuffled is None:
        _rename(copies, groups, records)

    def original(part: int) -> OriginalPart:
        flags = np.packbits(taken(records[part])).tobytes()
        return OriginalPart(part=part, taken=flags, copies=copies[part].tobytes())

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
            originals=tuple(map(original, group)),
            dataset=str(dataset),
            manifest=file,
            spec=manifest.spec_of(group[0]).model_copy(update=ruled),
            output=str(output),
            scratch=build.part_scratch(number),
        )
        for number, group in enumerate(groups)
    ]
    return replace(build, jobs=tuple(jobs))


def _of_condition(
    condition: Condition | None, dataset: Storage, manifest: Manifest, records: Sequence[PartRecord]
) -> Candidates:
    """Find the documents for which the condition holds, or all documents if there is none.

    Raises:
        UsageError: the condition names a missing column, or holds for no document.
    """
    if condition is None:
        return lambda record: np.ones(record.documents_kept, np.bool_)
    require_columns(condition, manifest.columns, where=str(dataset))

    def where(record: PartRecord) -> Flags:
        return PartOfDataset(dataset, manifest, record.part).where(condition)

    held = packed(mapped_ahead(where, records))
    if not any(held(record).any() for record in records):
        raise UsageError(f"--where {condition.text!r} holds for no document of {dataset}.")
    return held


def packed(flags: Iterable[Flags]) -> Candidates:
    """Keep the flags of the documents of all parts, in turn, as a bit per document."""
    bits = [*map(np.packbits, flags)]
    return lambda record: unpacked(bits[record.part], record.documents_kept)


def _rename(
    copies: Sequence[Ints], groups: Sequence[Sequence[int]], records: Sequence[PartRecord]
) -> None:
    """Rename each witness to its part of the subset and its row there.

    Args:
        copies: the copies in each part; see `DistinctDocuments.left_out`.
        groups: the parts that each part of the subset is made of.
        records: the records of all parts.
    """
    parts, before = np.zeros((2, len(records)), np.int64)
    for number, group in enumerate(groups):
        rows = accumulate((records[part].rows for part in group), initial=0)
        parts[[*group]], before[[*group]] = number, [*rows][:-1]
    for found in copies:
        old = found[1] >> ROW_BITS
        found[1] += (parts[old] - old << ROW_BITS) + before[old]


def _choose(
    config: SubsetConfig, dataset: Storage, records: Sequence[PartRecord], held: Candidates
) -> Choice:
    """Choose the documents that the configuration asks for."""

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
    """Yield the tokens of each document of a part, with end-of-text ids, a part at a time."""

    def of(record: PartRecord) -> Ints:
        listed = listed_documents(DatasetFiles(dataset), record)
        lengths: Ints = listed["tokens"].to_numpy() + 1
        return lengths

    return mapped_ahead(of, records)


def _groups(
    records: Sequence[PartRecord], counts: Sequence[int], copies: Sequence[Ints]
) -> Iterator[tuple[int, ...]]:
    """Yield, for each part of the subset in order, the parts of the dataset that it is made of.

    A part without chosen documents or copies is skipped. Parts of complete files are joined until
    they fill a shard.

    Args:
        records: the records of the parts.
        counts: the number of chosen documents of each part.
        copies: the copies in each part; see `DistinctDocuments.left_out`.
    """
    group: list[int] = []
    tokens = spans = 0
    for record in records:
        count = counts[record.part]
        if not count and not copies[record.part].size:
            continue
        more = record.tokens_kept * count // record.documents_kept
        room = record.spec.shard_size
        is_alone = bool(record.spec.keep_columns) or record.made_of[0].span is not None
        is_full = (tokens + more) * np.dtype(record.spec.dtype).itemsize > room
        if group and (is_alone or is_full or spans + len(record.made_of) > _MOST_SPANS):
            yield tuple(group)
            group, tokens, spans = [], 0, 0
        group.append(record.part)
        tokens, spans = tokens + more, spans + len(record.made_of)
        if is_alone:
            spans = _MOST_SPANS
    if group:
        yield tuple(group)


def _part(number: int, group: Sequence[int], records: Sequence[PartRecord]) -> Part:
    size = sum(shard_bytes(records[part]) for part in group)
    return Part.whole(number, SourceFile(url=records[group[0]].source.url, size=size))
