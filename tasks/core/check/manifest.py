"""The checks of the manifest, the records, and the files that belong to no part."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from streaming_ext.base.errors import MissingExtraError, StorageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.layout import (
    BUILD,
    MANIFEST,
    PARTS_FOLDER,
    RUNS_FOLDER,
    TOKENIZER_FOLDER,
    Split,
    record_path,
)
from streaming_ext.format.manifest import (
    Generation,
    Manifest,
    MergedDataset,
    ShuffleSummary,
    index_file,
)
from streaming_ext.format.reading import manifest_of, record_of
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, content_hash, to_json
from streaming_ext.format.shuffled import Source, sources_of
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.text.sources import by_numbers
from streaming_ext.text.tokenizer.load import TOKENIZER_FILES
from streaming_ext.text.tokenizer.probes import PROBES_PATH, difference, saved_probes
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.publish import split_indexes
from tasks.core.check.findings import Outcome, differences
from tasks.core.derive.merging import renumbered, renumbered_columns
from tasks.core.reading.dataset_files import (
    DatasetFiles,
    beside_parts,
    is_of_extension,
    open_tokenizer,
    part_of,
    tables_of,
)
from tasks.core.shuffle.spills import identity_of_table

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A dataset whose metadata were checked.

    Attributes:
        manifest: the manifest; None if it is damaged.
        records: the records of the parts that can be checked, in order.
        sources: the sources of a shuffled dataset, by number; empty if their table is damaged.
        tokenizer: the saved tokenizer; None if it is damaged.
    """

    files: DatasetFiles
    manifest: Manifest | None
    records: Mapping[int, PartRecord]
    sources: Sequence[Source] = field(default=())
    tokenizer: Tokenizer | None

    @property
    def is_complete(self) -> bool:
        """True if the manifest and all records can be used."""
        return self.manifest is not None and len(self.records) == len(self.manifest.parts)


def open_checked(files: DatasetFiles, out: Outcome) -> Opened:
    """Check the manifest, the records, and all files that belong to no part.

    Raises:
        NotADatasetError: there is no manifest.
        NewerVersionError: a newer shardmill made the dataset.
    """
    data, manifest = files.read_manifest(), None
    out.count(files=1, bytes=len(data))
    with out.about(MANIFEST):
        manifest = manifest_of(data, where=MANIFEST)
    records = _records(files, manifest, out)
    sources: Sequence[Source] = ()
    if manifest is not None:
        made = manifest
        with out.about(MANIFEST):
            sources = _sources(manifest.shuffled, files, out)
            made = _made_again(manifest, records, files, out)
            _compare(data, made, records, out)
        _check_beside(made, files, out)
        _find_extras(files, manifest, records, out)
    specs = [record.spec for record in records.values()] if manifest is None else [manifest.spec]
    return Opened(
        files=files,
        manifest=manifest,
        records=records,
        sources=sources,
        tokenizer=_tokenizer(files, manifest, specs[0], out) if specs else None,
    )


def _records(files: DatasetFiles, manifest: Manifest | None, out: Outcome) -> dict[int, PartRecord]:
    """Read the records; return those that can be used, by part.

    They are the records that the manifest lists or, without a manifest, all that are found.
    """
    paths = [path for path in files.sizes if path.startswith(f"{PARTS_FOLDER}/")]
    listed: dict[str, FileRecord] = {}
    if manifest is not None:
        listed = {record_path(part.part): part.record for part in manifest.parts}

    def read(path: str) -> tuple[PartRecord | None, Outcome]:
        found = Outcome()
        with found.about(path):
            data = files.read(listed[path]) if listed else files.read_small(path)
            found.count(files=1, bytes=len(data))
            record = record_of(data, where=path)
            record.files()  # checks the sizes and hashes of its shards
            if path == record_path(record.part):
                return record, found
            found.found(path, f"says that it is of part {record.part}")
        return None, found

    records: dict[int, PartRecord] = {}
    for record, found in mapped_ahead(read, listed or paths):
        out.take(found)
        if record is not None:
            records[record.part] = record
    return dict(sorted(records.items()))


def _made_again(
    manifest: Manifest, records: Mapping[int, PartRecord], files: DatasetFiles, out: Outcome
) -> Manifest:
    """Make the manifest again from the files that it lists; keep the entries of damaged files."""
    merged, begin = [], 0
    for each in manifest.merged:
        spec = records[begin].spec if each.parts and begin in records else each.spec
        merged.append(each.model_copy(update={"spec": spec}))
        begin += each.parts
    spec = _spec_of_all(manifest, merged, records)

    def counts_of(each: Manifest | Generation, end: int) -> dict[str, Any]:
        """Return the splits of the first `end` parts, and the summary of their sources."""
        splits, shuffled = each.splits, each.shuffled
        own = [records[number] for number in range(end) if number in records]
        if len(own) == end and all({*part.splits} == {*spec.splits} for part in own):
            made = split_indexes(spec, own)
            splits = {split: summary for split, (summary, _) in made.items()}
        if shuffled is not None and (sources := _sources(shuffled, files, out)):
            counts = {
                "files": len(sources),
                "rows": sum(source.rows for source in sources),
                "files_not_checked": sum(source.identity.content is not None for source in sources),
            }
            shuffled = shuffled.model_copy(update=counts)
        return {"splits": splits, "shuffled": shuffled}

    update: dict[str, Any] = {
        "spec": spec,
        "parts": tuple(
            records[number].summary() if number in records else part
            for number, part in enumerate(manifest.parts)
        ),
        "tokenizer_files": tuple(sorted({*manifest.tokenizer_files}, key=lambda file: file.path)),
        "merged": tuple(merged),
    }
    made = manifest.model_copy(update=update | counts_of(manifest, len(manifest.parts)))
    generations: list[Generation] = []
    for number, listed in enumerate(manifest.generations):
        own = listed.model_copy(update=counts_of(listed, listed.parts))
        older = made.model_copy(update={"generations": (*generations, own)}).before(number)
        generations.append(older.as_generation(FileRecord.of(MANIFEST, to_json(older))))
    return made.model_copy(update={"generations": tuple(generations)})


def _spec_of_all(
    manifest: Manifest, merged: Sequence[MergedDataset], records: Mapping[int, PartRecord]
) -> DatasetSpec:
    """Return the specification of all parts; in a merged dataset, it is the first member's.

    A dataset that is merged from subsets is not a subset itself. A subset of a merged dataset is
    one, and so is each of its members.
    """
    if not merged:
        return next((record.spec for record in records.values()), manifest.spec)
    rules = {each.spec.subset for each in merged}
    rule = rules.pop() if len(rules) == 1 else None
    if len({each.manifest for each in merged}) < len(merged):  # perhaps merged with itself
        rule = rule and manifest.spec.subset and rule
    return merged[0].spec.model_copy(update={"subset": rule})


def _compare(data: bytes, made: Manifest, records: Mapping[int, PartRecord], out: Outcome) -> None:
    """Compare a manifest with the one that was made again; findings name the differences."""
    if to_json(made) != data:
        words = differences(manifest_of(data, where=MANIFEST), made)
        out.found(MANIFEST, words or "not in the form in which it is written")
    for part in made.parts:
        spec = made.spec_of(part.part)
        if part.part in records and (words := differences(spec, records[part.part].spec)):
            out.found(MANIFEST, f"part {part.part}: {words}")
    if {file.path for file in made.tokenizer_files} - {PROBES_PATH} != _tokenizer_paths(made):
        out.found(MANIFEST, "it lists other files of the tokenizer")
    if not _agrees_with_sources(made):
        words = "the parts are not those of the sources in their order, with all of their rows"
        out.found(MANIFEST, words)
    if made.merged and made.spec.subset is None and len(records) == len(made.parts):
        with_probes = made.tokenizer_files
        older = tuple(file for file in with_probes if file.path != PROBES_PATH)
        others = {*_other_members(made, records, with_probes)}
        for number in sorted(others & {*_other_members(made, records, older)}):
            out.found(
                MANIFEST, f"merged[{number}] is not the dataset that its parts were taken from"
            )


def _other_members(
    manifest: Manifest, records: Mapping[int, PartRecord], tokenizer_files: tuple[FileRecord, ...]
) -> Iterator[int]:
    """Yield the members of a merged dataset whose manifest, made again from their parts, differs.

    A member is a dataset, or the parts that an extension added to the members before it. Subsets
    are skipped, and members whose tokenizer may have had other files.
    """
    probed = any(file.path == PROBES_PATH for file in manifest.tokenizer_files)
    older: tuple[Generation, ...] = ()
    first = end = 0

    def made(each: MergedDataset) -> Manifest:
        parts = [renumbered(records[number], number - first) for number in range(first, end)]
        splits = split_indexes(each.spec, parts)
        return Manifest(
            spec=each.spec,
            parts=tuple(part.summary() for part in parts),
            splits={split: summary for split, (summary, _) in splits.items()},
            tokenizer_files=tokenizer_files,
            node_partition=each.node_partition,
            generations=older,
            added=tuple(
                renumbered_columns(added, -first)
                for added in manifest.added
                if first <= added.first_part and added.end <= end
            ),
        )

    for number, each in enumerate(manifest.merged):
        begin, end = end, end + each.parts
        if each.spec.subset is not None:
            older = ()
            continue
        grown = made(each) if older else None
        if grown is None or content_hash(to_json(grown)) != each.manifest:
            first, older = begin, ()
            grown = made(each)
        file = FileRecord.of(MANIFEST, to_json(grown))
        older = (*older, grown.as_generation(file))
        tokenizer, same = each.spec.tokenizer, manifest.spec.tokenizer
        is_known = not number or (probed and tokenizer == same and tokenizer.kind != "huggingface")
        if is_known and file.xxh128 != each.manifest:
            yield number


def _tokenizer_paths(manifest: Manifest) -> set[str]:
    names = TOKENIZER_FILES[manifest.spec.tokenizer.kind]
    return {f"{TOKENIZER_FOLDER}/{name}" for name in names}


def _agrees_with_sources(manifest: Manifest) -> bool:
    """Return whether parts are in the order of sources or, if shuffled, made of all their rows."""
    older = [each.parts for each in manifest.generations]
    if manifest.shuffled is None:
        key = by_numbers if manifest.spec.imported else str
        starts = [(key(part.source.url), part.span or (0, 0)) for part in manifest.parts]
        begins = {*older, *accumulate(each.parts for each in manifest.merged)}
        pairs = enumerate(pairwise(starts), start=1)
        return all(before < after for number, (before, after) in pairs if number not in begins)
    found, ends = manifest.shuffled, [0, *older, len(manifest.parts)]
    tables = zip(tables_of(manifest), pairwise(ends), strict=True)
    are_named = all(
        part.source == identity_of_table(table)
        for table, (begin, end) in tables
        for part in manifest.parts[begin:end]
    )
    documents = sum(split.documents for split in manifest.splits.values())
    documents += manifest.duplicate_documents + found.null_documents + found.empty_documents
    documents += found.bad_documents + sum(found.dropped_documents.values())
    # A subset has no part for a part of the original from which no document was chosen.
    has_all = documents == found.rows or (manifest.spec.subset and documents <= found.rows)
    return are_named and bool(has_all)


def _check_beside(manifest: Manifest, files: DatasetFiles, out: Outcome) -> None:
    """Read all files that belong to no part."""
    indexes = [*manifest.splits]
    for number, file in enumerate(beside_parts(manifest)):
        with out.about(file.path):
            if number < len(indexes):
                file = _index(indexes[number], file, manifest, files)  # noqa: PLW2901
            out.count(files=1, bytes=len(files.read(file)))


def _index(split: Split, index: FileRecord, manifest: Manifest, files: DatasetFiles) -> FileRecord:
    """Return the index to check: where it is kept, if `index.json` may be another generation's.

    That is sound while an older generation is read, or after an extension was killed before its
    last step.
    """
    if files.generation is None:
        if BUILD not in files.sizes or not manifest.generations:
            return index
        older, path = manifest.generations[-1].splits.get(split), index.path
        held = content_hash(files.read_small(path)) if path in files.sizes else None
        if held != (older and older.index.xxh128):
            return index
    return index_file(split, index, files.sizes)


def _sources(
    shuffled: ShuffleSummary | None, files: DatasetFiles, out: Outcome
) -> Sequence[Source]:
    """Read the sources of a shuffled dataset; return none if their table is damaged."""
    if shuffled is not None:
        with out.about(shuffled.sources.path):
            return sources_of(files.read(shuffled.sources))
    return ()


def _tokenizer(
    files: DatasetFiles, manifest: Manifest | None, spec: DatasetSpec, out: Outcome
) -> Tokenizer | None:
    """Open the saved tokenizer; return it if the dataset was made with it."""
    if not out.is_sound(TOKENIZER_FOLDER):
        return None
    with out.about(TOKENIZER_FOLDER):
        try:
            tokenizer = open_tokenizer(files, spec)
        except MissingExtraError as error:  # e.g. on a training node
            _log.warning("The saved tokenizer is compared by its bytes, and not opened. %s", error)
            return None
        recorded = spec.tokenizer.model_dump(exclude_none=True)
        if (opened := tokenizer.description()) == recorded:
            with out.about(PROBES_PATH):
                _check_probes(files, manifest, tokenizer, out)
            return tokenizer
        out.found(MANIFEST, f"spec.tokenizer is {recorded}, the saved tokenizer is {opened}")
    return None


def _check_probes(
    files: DatasetFiles, manifest: Manifest | None, tokenizer: Tokenizer, out: Outcome
) -> None:
    """Compare the probes with the saved tokenizer; old datasets have no probes."""
    if manifest is not None and PROBES_PATH in files.sizes:
        probes, where = saved_probes(manifest, files.read, PROBES_PATH), str(files.storage)
        if words := difference(probes, tokenizer, manifest.spec.tokenizer, where):
            out.found(PROBES_PATH, words)


def _find_extras(
    files: DatasetFiles, manifest: Manifest, records: Mapping[int, PartRecord], out: Outcome
) -> None:
    """Report files that nothing lists, and leftovers of killed runs."""
    known = {MANIFEST, BUILD, *(file.path for file in beside_parts(manifest))}
    known |= {file.path for record in records.values() for file in record.files()}
    known |= {record_path(part.part) for part in manifest.parts}
    known |= _tokenizer_paths(manifest)
    # If the record of a part is damaged, its files are not known.
    lost = {part.part for part in manifest.parts} - {*records}
    grows = BUILD in files.sizes or files.generation is not None
    for path, size in files.sizes.items():
        if path in known or path.startswith(f"{RUNS_FOLDER}/") or part_of(path) in lost:
            continue
        if not (grows and is_of_extension(path, manifest)):
            out.found(path, f"{size} bytes that nothing in the dataset lists")
    if BUILD in files.sizes:
        return  # the extension in progress uses or removes them
    try:
        leftovers = files.storage.leftovers()
    except StorageError as error:
        if error.transient:
            raise
        return  # with read access alone, uploads cannot be listed; the dataset does not need them
    for leftover in leftovers:
        out.found(leftover, "left by a killed run; it can be removed")
