"""Several published datasets as one: the parts of each in turn, renumbered, with the same bytes."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.format.layout import MANIFEST, documents_path, index_path
from streaming_ext.format.manifest import Manifest, MergedDataset
from streaming_ext.format.record import LOCAL_VERSION, PartRecord, SpanRecord
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.shard import Shard
from streaming_ext.store import Storage
from streaming_ext.text.documents.files import Span
from streaming_ext.writing.publish import filled_splits, merged_index, summarize_split
from tasks.core.derive.contents import Contents, records_of
from tasks.core.derive.move import Move, Text, Unit

# What a record may say in its own way: how its sources were read, which decides no id of others.
_OF_SOURCES = frozenset(
    {"text_column", "text_separator", "source_format", "on_bad_document", "filters", "subset"}
)
_OF_SETS = ("imported.set_format:", "imported.dtype:", "imported.rows:")  # the same of sets of ids
_OF_HOLDOUTS = ("holdout_", "imported.holdout_by:")


def merged(datasets: Sequence[Storage], *, repeats: bool) -> Contents:
    """What datasets become when they are merged, in this order; metadata alone is read.

    Args:
        datasets: at least two.
        repeats: whether they may be made of the same source files.

    Raises:
        ConfigMismatchError: they do not go together; names every field.
        UsageError: they are shuffled or deduplicated, or share a source file.
        DatasetError: one is no dataset, or its metadata are damaged.
    """
    opened = [(storage, *records_of(storage)) for storage in datasets]
    (first_storage, first, _), *others = opened
    for storage, manifest, _ in opened:
        _require_plain(storage, manifest)
    for storage, manifest, _ in others:
        _require_same(first_storage, first, storage, manifest)
    if not repeats:
        _require_other_sources([(storage, records) for storage, _, records in opened])
    units: list[Unit] = []
    all_records: list[PartRecord] = []
    for storage, _, records in opened:
        for record in records:
            new = _renumbered(record, len(all_records))
            units.append(_unit(storage, record, new))
            all_records.append(new)
    spec = first.spec.model_copy(update={"subset": None})  # that says something of one of them
    indexes = {
        split: merged_index(split, all_records, spec) for split in filled_splits(spec, all_records)
    }
    result = Manifest(
        spec=spec,
        parts=tuple(record.summary() for record in all_records),
        splits={
            split: summarize_split(split, all_records, FileRecord.of(index_path(split), index))
            for split, index in indexes.items()
        },
        tokenizer_files=first.tokenizer_files,
        merged=tuple(
            member for storage, manifest, _ in opened for member in _members(storage, manifest)
        ),
    )
    return Contents(
        units=tuple(units),
        rest=Unit(
            moves=tuple(Move.of(str(first_storage), file) for file in first.tokenizer_files),
            texts=tuple(
                Text(path=index_path(split), text=index.decode())
                for split, index in indexes.items()
            ),
        ),
        manifest=Text(path=MANIFEST, text=to_json(result).decode()),
    )


def _require_plain(storage: Storage, manifest: Manifest) -> None:
    """Refuse what is a whole only by itself."""
    spec = manifest.spec
    kinds = {"shuffled": spec.shuffle, "deduplicated": spec.deduplicate}
    for kind, value in kinds.items():
        if value is not None:
            raise UsageError(
                f"{storage} is {kind} as a whole, which a merge would not be. Shard the sources of "
                "all in one run, or mix the datasets in training, as streams."
            )


def _require_same(
    first_storage: Storage, first: Manifest, storage: Storage, manifest: Manifest
) -> None:
    """Refuse what does not go together, field by field.

    Raises:
        ConfigMismatchError: naming every field.
    """
    ours = first.spec
    theirs = manifest.spec.model_copy(update={name: getattr(ours, name) for name in _OF_SOURCES})
    lines = [
        line.replace("the output has", f"{first_storage} has").replace(
            "this run asks for", f"{storage} has"
        )
        for line in ours.differences(theirs)
        if not line.startswith(_OF_SETS)
    ]
    if ours.dtype != theirs.dtype:
        lines.append(f"type of an id: {first_storage} has {ours.dtype}, {storage} {theirs.dtype}")
    if not lines:
        return
    advice = "Shard one of them again with the values of the other, or mix them as streams."
    if any(line.startswith(_OF_HOLDOUTS) for line in lines):
        advice += " With other holdouts, a text could be in train of one and held out in the other."
    raise ConfigMismatchError(
        f"{first_storage} and {storage} cannot be merged:\n  " + "\n  ".join(lines) + f"\n{advice}"
    )


def _require_other_sources(opened: Iterable[tuple[Storage, Sequence[PartRecord]]]) -> None:
    """Refuse source files of which two of the datasets hold the same bytes.

    Raises:
        UsageError: naming the first.
    """
    spans: dict[str, list[tuple[SpanRecord, Storage]]] = defaultdict(list)
    for storage, records in opened:
        for record in records:
            for source_span in record.made_of:
                spans[source_span.source.url].append((source_span, storage))
    for url in sorted(spans):
        if (both := _meeting(spans[url])) is not None:
            raise UsageError(
                f"{url} is a source of {both[0]} and of {both[1]}: its texts would be there "
                "twice. Leave one out, or pass --repeats to have them twice."
            )


def _meeting(held: Iterable[tuple[SpanRecord, Storage]]) -> tuple[Storage, Storage] | None:
    """Two datasets that are made of the same bytes of a file, if any are.

    Args:
        held: spans of the file, each with the dataset that is made of it.
    """
    going_on: list[tuple[SpanRecord, Storage]] = []  # a span of a dataset, or few
    for source_span, storage in sorted(held, key=lambda each: _span(each[0])):
        start, _ = _span(source_span)
        going_on = [each for each in going_on if _span(each[0])[1] > start]
        for other, holder in going_on:
            if holder is not storage and _of_one_file(other, source_span):
                return holder, storage
        going_on.append((source_span, storage))
    return None


def _span(source_span: SpanRecord) -> Span:
    return source_span.span or (0, source_span.source.size)


def _of_one_file(one: SpanRecord, other: SpanRecord) -> bool:
    """Whether two spans of what lies at one place are of the same file, as far as that is known.

    The version of a span of a local file is of its own bytes alone: what was cut in two ways has
    no more than the size of the file in common.
    """
    if one.span == other.span or not one.source.version.startswith(LOCAL_VERSION):
        return one.source.version == other.source.version
    return one.source.size == other.source.size


def _renumbered(record: PartRecord, number: int) -> PartRecord:
    """The record of a part under another number: its files have other names, and the same bytes."""
    form = record.spec.shard_format
    splits = {
        split: held.model_copy(
            update={
                "shards": tuple(
                    _renamed(shard, form.shard_names(split, number, index)[0])
                    for index, shard in enumerate(held.shards)
                )
            }
        )
        for split, held in record.splits.items()
    }
    documents = record.documents.model_copy(update={"path": documents_path(number)})
    fields = {name: getattr(record, name) for name in type(record).model_fields}
    return PartRecord(**fields | {"part": number, "splits": splits, "documents": documents})


def _renamed(shard: Shard, raw_name: str) -> Shard:
    packed = shard.zip_name
    if packed is not None:
        packed = raw_name + packed.removeprefix(shard.raw_name)
    return replace(shard, raw_name=raw_name, zip_name=packed)


def _unit(storage: Storage, old: PartRecord, new: PartRecord) -> Unit:
    moves = [
        Move.of(str(storage), before, after.path)
        for before, after in zip(old.files(), new.files(), strict=True)
    ]
    summary, held = new.summary(), new.splits.values()
    return Unit(
        moves=tuple(moves),
        texts=(Text(path=summary.record.path, text=to_json(new).decode()),),
        documents=sum(split.documents for split in held),
        tokens=sum(split.tokens for split in held),
    )


def _members(storage: Storage, manifest: Manifest) -> tuple[MergedDataset, ...]:
    """What a dataset is in a merged one: itself, or what it was merged of."""
    if manifest.members:
        return manifest.members
    own = FileRecord.of(MANIFEST, to_json(manifest))
    return (
        MergedDataset(
            manifest=own.xxh128, parts=len(manifest.parts), spec=manifest.spec, share=manifest.share
        ),
    )
