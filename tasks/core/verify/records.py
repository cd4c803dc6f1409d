"""Checking what a dataset says of itself: manifest, records and indexes against each other."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

from pydantic import BaseModel, ValidationError

from streaming_ext.dataset.compression import Compression
from streaming_ext.dataset.extended.generations import index_file
from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.layout import (
    EXTENDING,
    MANIFEST,
    PARTS_FOLDER,
    TOKENIZER_FOLDER,
    Split,
    index_path,
    record_path,
)
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.reading import manifest_of, record_of
from streaming_ext.dataset.record import PartRecord, PartSummary
from streaming_ext.dataset.schema import FileRecord, to_json
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import CorruptDatasetError, StorageError, UsageError, one_line
from streaming_ext.plain_faults import plain_faults
from streaming_ext.text.sources import by_numbers
from streaming_ext.text.tokenizer.tokenizer import TOKENIZER_FILES
from tasks.core.outputs.publish import filled_splits, merged_index, summarize_split
from tasks.core.outputs.whole import of_generations, tables_of
from tasks.core.reading.dataset_files import MAX_JSON_BYTES, DatasetFiles
from tasks.core.shuffle.gathering import identity_of_table
from tasks.core.verify.findings import Outcome

MAX_SEQUENCE_LENGTH = 2**24
_IO_THREADS = 8


def read_manifest(files: DatasetFiles, out: Outcome) -> Manifest | None:
    """The manifest, None where it is damaged.

    Raises:
        NotADatasetError: there is none.
        NewerVersionError: a newer shardmill made it.
    """
    data = files.read_manifest()
    out.count(files=1, bytes=len(data))
    try:
        manifest = manifest_of(data, where=MANIFEST)
    except CorruptDatasetError as error:
        out.found(MANIFEST, one_line(error))
        return None
    if to_json(manifest) != data:
        out.found(MANIFEST, "not in the form in which it is written: other spaces, order or types")
    for words in spec_problems(manifest.spec):
        out.found(MANIFEST, words)
    if manifest.shuffled is not None:
        begin = 0
        ends = [*(each.parts for each in manifest.generations), len(manifest.parts)]
        for table, end in zip(tables_of(manifest), ends, strict=True):
            expected_source = identity_of_table(table)
            if any(part.source != expected_source for part in manifest.parts[begin:end]):
                out.found(MANIFEST, f"a part is not made of what {table.path} lists")
            begin = end
        documents = sum(split.documents for split in manifest.splits.values())
        documents += manifest.duplicate_documents
        left_out = manifest.shuffled.null_documents + manifest.shuffled.empty_documents
        left_out += manifest.shuffled.bad_documents
        left_out += sum(manifest.shuffled.dropped_documents.values())
        if documents + left_out != manifest.shuffled.rows:
            out.found(
                MANIFEST,
                f"{manifest.shuffled.rows} rows of all sources, but {documents} documents kept "
                f"and {left_out} skipped",
            )
    elif not _in_order(manifest):
        out.found(MANIFEST, "the parts are not in the sorted order of their source files")
    for number, part in enumerate(manifest.parts):
        if part.part != number or part.record.path != record_path(number):
            out.found(
                MANIFEST,
                f"part {number} is numbered {part.part} with the record {part.record.path!r}, "
                f"expected {record_path(number)!r}",
            )
            break
    expected = [
        f"{TOKENIZER_FOLDER}/{f}" for f in sorted(TOKENIZER_FILES[manifest.spec.tokenizer.kind])
    ]
    if [file.path for file in manifest.tokenizer_files] != expected:
        out.found(MANIFEST, f"the tokenizer's files are not {', '.join(expected)}")
    return manifest


def _in_order(manifest: Manifest) -> bool:
    """Whether parts stand in the order of their sources; of a merged dataset, those of each."""
    key = by_numbers if manifest.spec.imported else str
    places = [(key(part.source.url), part.span or (0, 0)) for part in manifest.parts]
    begins = {0, *accumulate(each.parts for each in manifest.merged)}
    begins |= {each.parts for each in manifest.generations}
    pairs = enumerate(pairwise(places), start=1)
    return all(number in begins or before < after for number, (before, after) in pairs)


def spec_problems(spec: DatasetSpec) -> list[str]:
    """What in a specification no run would have accepted; contents are not looked at then."""
    tokenizer, problems = spec.tokenizer, []
    if tokenizer.eot_id >= tokenizer.vocab_size:
        problems.append(
            f"end-of-text id {tokenizer.eot_id} in a vocabulary of {tokenizer.vocab_size} ids"
        )
    if tokenizer.vocab_size > 2**32:
        problems.append(f"a vocabulary of {tokenizer.vocab_size} ids, at most {2**32} are possible")
    if spec.sequence_length > MAX_SEQUENCE_LENGTH:
        problems.append(
            f"sequence_length {spec.sequence_length}, at most {MAX_SEQUENCE_LENGTH} is possible"
        )
    try:
        Compression.parse(spec.compression)
        spec.shard_format.require_possible()
    except (UsageError, ValueError) as error:
        problems.append(one_line(error))
    return problems


def read_all_records(
    files: DatasetFiles, manifest: Manifest | None, out: Outcome
) -> dict[int, PartRecord]:
    """The records that can be used, by part; without a manifest, all that there are."""
    if manifest is None:
        paths = [path for path in files.sizes if path.startswith(f"{PARTS_FOLDER}/")]
        listed = dict.fromkeys(paths)
    else:
        listed = {record_path(part.part): part for part in manifest.parts}

    def read(path: str) -> tuple[PartRecord | None, Outcome]:
        return _read_record(files, path, listed[path], manifest)

    records: dict[int, PartRecord] = {}
    with ThreadPoolExecutor(_IO_THREADS) as threads:
        for record, found in threads.map(read, listed):
            out.take([found])
            if record is not None:
                records[record.part] = record
    if manifest is not None:
        _compare_specs(manifest, records, out)
    return records


def _read_record(
    files: DatasetFiles, path: str, summary: PartSummary | None, manifest: Manifest | None
) -> tuple[PartRecord | None, Outcome]:
    out = Outcome()
    try:
        data = files.read_small(path)
    except (CorruptDatasetError, StorageError) as error:
        out.found(path, str(error))
        return None, out
    out.count(files=1, bytes=len(data))
    try:
        record = record_of(data, where=path)
        record.files()  # sizes and hashes of its shards
        ours = record.summary()
    except CorruptDatasetError as error:
        out.found(path, one_line(error))
        return None, out
    except ValidationError as error:
        out.found(path, f"not valid: {plain_faults(error)}")
        return None, out
    intact = summary is None or content_hash(data) == summary.record.xxh128
    if summary is not None and not intact:
        out.found(
            path,
            f"{len(data)} bytes of content hash {content_hash(data)}, {MANIFEST} says "
            f"{summary.record.size} of {summary.record.xxh128}",
        )
    if to_json(record) != data:
        out.found(path, "not in the form in which it is written: other spaces, order or types")
    elif summary is not None and ours != summary:
        for words in _differences(summary, ours, leave_out={"record"} if not intact else set()):
            out.found(MANIFEST if intact else path, f"part {summary.part}: {words}")
    problems = [*spec_problems(record.spec)] if manifest is None else []
    if path != record_path(record.part):
        problems.append(f"says that it is of part {record.part}")
    if tuple(record.splits) and set(record.splits) != set(record.spec.splits):
        problems.append(
            f"has the splits {', '.join(record.splits)}, expected {', '.join(record.spec.splits)}"
        )
    for words in problems:
        out.found(path, words)
    return (None if problems else record), out


def _compare_specs(manifest: Manifest, records: dict[int, PartRecord], out: Outcome) -> None:
    """Where all records agree with each other, it is the manifest that is wrong."""
    others = {
        part: record for part, record in records.items() if record.spec != manifest.spec_of(part)
    }
    if not others:
        return
    first = next(iter(others.values()))
    alike = not manifest.merged and all(r.spec == first.spec for r in others.values())
    if alike and len(others) == len(records):
        differences = _differences(manifest.spec, first.spec)
        out.found(MANIFEST, f"all {len(records)} records disagree: {'; '.join(differences)}")
        return
    for part, record in others.items():
        differences = _differences(manifest.spec_of(part), record.spec)
        out.found(record_path(part), f"made with another configuration: {'; '.join(differences)}")


def verify_generations(manifest: Manifest, files: DatasetFiles, out: Outcome) -> None:
    """What an extended dataset keeps so that training goes on in an older generation."""
    older_tables = tables_of(manifest)[:-1]
    for file in (*of_generations(manifest), *older_tables):
        try:
            data = files.read(file, limit=MAX_JSON_BYTES)
        except (CorruptDatasetError, StorageError) as error:
            out.found(file.path, str(error))
            continue
        out.count(files=1, bytes=len(data))


def verify_sums(
    manifest: Manifest, records: Mapping[int, PartRecord], files: DatasetFiles, out: Outcome
) -> None:
    """Indexes byte for byte, and the sums over all parts; needs every record for the latter."""
    complete = len(records) == len(manifest.parts)
    expected = filled_splits(manifest.spec, records.values())
    if complete and set(manifest.splits) != set(expected):
        out.found(
            MANIFEST,
            f"has the splits {', '.join(manifest.splits) or 'none'}, expected "
            f"{', '.join(expected) or 'none'}",
        )
    parts = [records[part] for part in sorted(records)] if complete else None
    usable = not spec_problems(manifest.spec)
    for split, summary in manifest.splits.items():
        held = parts if usable and parts and all(split in part.splits for part in parts) else None
        index = _verify_index(split, manifest, held, files=files, out=out)
        if held is None:
            continue
        sums = summarize_split(split, held, FileRecord.of(index_path(split), index or b""))
        for words in _differences(summary, sums, leave_out={"index"}):
            out.found(MANIFEST, f"{split}: {words}")


def _verify_index(
    split: Split,
    manifest: Manifest,
    parts: list[PartRecord] | None,
    *,
    files: DatasetFiles,
    out: Outcome,
) -> bytes | None:
    path, listed = index_path(split), manifest.splits[split].index
    expected = None if parts is None else merged_index(split, parts, manifest.spec)
    right = None if expected is None else FileRecord.of(path, expected)
    if listed.path != path:
        out.found(MANIFEST, f"names {listed.path!r} as the index of {split}, expected {path!r}")
    elif right is not None and right != listed:
        out.found(
            MANIFEST,
            f"says that {path} has {listed.size} bytes of content hash {listed.xxh128}, the "
            f"records make {right.size} of {right.xxh128}",
        )
    wanted = right or listed.model_copy(update={"path": path})
    # What stock readers know is of a later generation, or of the one before until the very end.
    if files.generation is not None or _is_still_older(split, manifest, files):
        wanted = index_file(split, wanted, files.sizes)
    try:
        data = files.read(wanted, limit=MAX_JSON_BYTES)
    except (CorruptDatasetError, StorageError) as error:
        out.found(path, f"{error} (the shards of all records, merged)" if right else str(error))
        return expected
    out.count(files=1, bytes=len(data))
    return data


def _is_still_older(split: Split, manifest: Manifest, files: DatasetFiles) -> bool:
    """Whether an extension has put its manifest, and not yet this index for stock readers."""
    if EXTENDING not in files.sizes or not manifest.generations:
        return False
    older = manifest.generations[-1].splits.get(split)
    if older is None:
        return index_path(split) not in files.sizes
    try:
        files.read(older.index, limit=MAX_JSON_BYTES)
    except (CorruptDatasetError, StorageError):
        return False
    return True


def _differences(
    listed: BaseModel, found: BaseModel, *, leave_out: set[str] | None = None
) -> Iterator[str]:
    """A line for each field in which the manifest is not what the records say."""
    ours, theirs = listed.model_dump(exclude=leave_out), found.model_dump(exclude=leave_out)
    for field, value in ours.items():
        if value == theirs[field]:
            continue
        if isinstance(value, dict):
            for key in value:
                if value[key] != theirs[field].get(key):
                    yield (f"{field}.{key} is {value[key]!r} in the manifest, "
                           f"{theirs[field].get(key)!r} in the record")  # fmt: skip
        else:
            yield f"{field} is {value!r} in the manifest, {theirs[field]!r} in the records"
