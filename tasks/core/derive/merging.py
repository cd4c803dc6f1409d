"""Several published datasets as one: the parts of each in turn, renumbered, with the same bytes."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.format.layout import MANIFEST, documents_path
from streaming_ext.format.manifest import Manifest, MergedDataset
from streaming_ext.format.record import LOCAL_VERSION, PartRecord, SpanRecord
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.store import Storage
from streaming_ext.writing.publish import split_indexes
from tasks.core.derive.contents import Contents, part_files
from tasks.core.derive.move import FileGroup, Move, Text
from tasks.core.reading.dataset_files import read_dataset

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
        UsageError: they are shuffled or deduplicated, or have a source file in common.
        DatasetError: one is no dataset, or its metadata are damaged.
    """
    opened = [(storage, *read_dataset(storage)[1:]) for storage in datasets]
    (first_storage, first, _), *others = opened
    for storage, manifest, _ in opened:
        require_divisible(
            storage,
            manifest,
            "a merge would not be. Shard the sources of all in one run, or mix the datasets in "
            "training, as streams.",
        )
    for storage, manifest, _ in others:
        _require_same(first_storage, first, storage, manifest)
    if not repeats:
        _require_other_sources([(storage, records) for storage, _, records in opened])
    groups: list[FileGroup] = []
    renumbered: list[PartRecord] = []
    for storage, _, records in opened:
        for record in records:
            renumbered.append(_renumbered(record, len(renumbered)))
            groups.append(part_files(str(storage), record, renumbered[-1]))
    spec = first.spec.model_copy(update={"subset": None})  # it says something of one dataset
    indexes = split_indexes(spec, renumbered)
    manifest = Manifest(
        spec=spec,
        parts=tuple(record.summary() for record in renumbered),
        splits={split: summary for split, (summary, _) in indexes.items()},
        tokenizer_files=first.tokenizer_files,
        merged=tuple(member for _, manifest, _ in opened for member in _members(manifest)),
    )
    rest = FileGroup(
        moves=tuple(Move.of(str(first_storage), file) for file in first.tokenizer_files),
        texts=tuple(
            Text(path=summary.index.path, text=index.decode())
            for summary, index in indexes.values()
        ),
    )
    text = Text(path=MANIFEST, text=to_json(manifest).decode())
    return Contents(parts=tuple(groups), rest=rest, manifest=text)


def require_divisible(storage: Storage, manifest: Manifest, advice: str) -> None:
    """Refuse a dataset whose order or choice of documents holds only for all of its parts.

    Raises:
        UsageError: naming what it is.
    """
    spec = manifest.spec
    for kind, value in {"shuffled": spec.shuffle, "deduplicated": spec.deduplicate}.items():
        if value is not None:
            raise UsageError(f"{storage} is {kind} as a whole, which {advice}")


def _require_same(
    first_storage: Storage, first: Manifest, storage: Storage, manifest: Manifest
) -> None:
    """Refuse what does not go together.

    Raises:
        ConfigMismatchError: naming every field.
    """
    ours = first.spec
    theirs = manifest.spec.model_copy(update={name: getattr(ours, name) for name in _OF_SOURCES})
    lines = [
        line
        for line in ours.differences(theirs, ours=f"{first_storage} has", theirs=f"{storage} has")
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
    """Refuse two datasets that are made of the same bytes of a source file.

    Raises:
        UsageError: naming the first file.
    """
    # spans: of each file, where they begin and end, and the dataset that is made of them
    spans: dict[str, list[tuple[int, int, SpanRecord, Storage]]] = defaultdict(list)
    for storage, records in opened:
        for record in records:
            for each in record.made_of:
                start, end = each.span or (0, each.source.size)
                spans[each.source.url].append((start, end, each, storage))
    for url, of_file in sorted(spans.items()):
        before: list[tuple[int, SpanRecord, Storage]] = []
        for start, end, each, storage in sorted(of_file, key=lambda span: span[:2]):
            before = [other for other in before if other[0] > start]
            for _, other, holder in before:
                if holder is not storage and _of_one_file(other, each):
                    raise UsageError(
                        f"{url} is a source of {holder} and of {storage}: its texts would be there "
                        "twice. Leave one out, or pass --repeats to have them twice."
                    )
            before.append((end, each, storage))


def _of_one_file(one: SpanRecord, other: SpanRecord) -> bool:
    """Whether two spans under one URL are of the same file, as far as that is known.

    The version of a span of a local file is of its own bytes alone: what was cut in two ways has
    no more than the size of the file in common.
    """
    if one.span == other.span or not one.source.version.startswith(LOCAL_VERSION):
        return one.source.version == other.source.version
    return one.source.size == other.source.size


def _renumbered(record: PartRecord, number: int) -> PartRecord:
    """The record of a part under another number: its files have other names, and the same bytes."""
    form, splits = record.spec.shard_format, {}
    for split, held in record.splits.items():
        shards = []
        for index, shard in enumerate(held.shards):
            name, packed = form.shard_name(split, number, index), shard.zip_name
            if packed is not None:
                packed = name + packed.removeprefix(shard.raw_name)
            shards.append(shard.model_copy(update={"raw_name": name, "zip_name": packed}))
        splits[split] = held.model_copy(update={"shards": tuple(shards)})
    documents = record.documents.model_copy(update={"path": documents_path(number)})
    fields = {name: getattr(record, name) for name in type(record).model_fields}
    return PartRecord(**fields | {"part": number, "splits": splits, "documents": documents})


def _members(manifest: Manifest) -> tuple[MergedDataset, ...]:
    """What a merged dataset lists of a dataset: itself, or the datasets it was merged from."""
    own = MergedDataset(
        manifest=FileRecord.of(MANIFEST, to_json(manifest)).xxh128,
        parts=len(manifest.parts),
        spec=manifest.spec,
        node_partition=manifest.node_partition,
    )
    return manifest.members or (own,)
