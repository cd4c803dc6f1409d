"""Several published datasets as one: the parts of each in turn, renumbered, with the same bytes."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, combinations, product, starmap

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.format.layout import MANIFEST, columns_path, documents_path
from streaming_ext.format.manifest import AddedColumns, Manifest, MergedDataset
from streaming_ext.format.record import PartRecord, SpanRecord
from streaming_ext.format.schema import content_hash, to_json
from streaming_ext.store import Storage, open_storage
from streaming_ext.writing.publish import split_indexes
from tasks.core.derive.contents import Contents, FileGroup, Move, part_files, together
from tasks.core.reading.dataset_files import read_dataset

# Fields that may differ: they say how sources were read, and decide no id of other sources.
_OF_SOURCES = frozenset(
    {"text_column", "text_separator", "source_format", "on_bad_document", "filters", "subset"}
)


@lru_cache(1)  # a run plans before and after it takes the output
def merged(urls: tuple[str, ...], _hashes: tuple[str | None, ...], *, repeats: bool) -> Contents:
    """The contents of datasets that are merged, in this order; metadata alone is read.

    Args:
        urls: the URLs of at least two datasets.
        _hashes: the hashes of their manifests, which say that nothing changed.
        repeats: they may be made of the same source files.

    Raises:
        ConfigMismatchError: they do not go together; names every field.
        UsageError: they are shuffled or deduplicated, or have a source file in common.
        DatasetError: one is no dataset, or its metadata are damaged.
    """
    opened = [(storage, *read_dataset(storage)[1:]) for storage in map(open_storage, urls)]
    (first_storage, first, _), *others = opened
    for storage, manifest, _ in opened:
        require_divisible(storage, manifest)
    for storage, manifest, _ in others:
        _require_same(first_storage, first, storage, manifest)
    if not repeats:
        _require_other_sources([(storage, records) for storage, _, records in opened])
    groups: list[FileGroup] = []
    parts: list[PartRecord] = []
    added: list[AddedColumns] = []
    for storage, manifest, records in opened:
        moved = [renumbered_columns(each, len(parts)) for each in manifest.added]
        for record in records:
            parts.append(renumbered(record, len(parts)))
            groups.append(part_files(str(storage), record, parts[-1]))
        for old, new in zip(manifest.added, moved, strict=True):
            moves = (
                Move.of(str(storage), file, to.path)
                for file, to in zip(old.files, new.files, strict=True)
            )
            groups[-1] = together([groups[-1], FileGroup(moves=tuple(moves))])
        added += moved
    spec = first.spec.model_copy(update={"subset": None})  # it says something of one dataset
    indexes = split_indexes(spec, parts)
    manifest = Manifest(
        spec=spec,
        parts=tuple(record.summary() for record in parts),
        splits={split: summary for split, (summary, _) in indexes.items()},
        tokenizer_files=first.tokenizer_files,
        merged=tuple(member for _, manifest, _ in opened for member in _members(manifest)),
        added=tuple(added),
    )
    root = str(first_storage)
    rest = FileGroup(
        moves=tuple(Move.of(root, file, file.path) for file in first.tokenizer_files),
        texts={summary.index.path: index.decode() for summary, index in indexes.values()},
    )
    groups.append(together([groups.pop(), rest]))
    return Contents(tuple(groups), MANIFEST, to_json(manifest))


def require_divisible(storage: Storage, manifest: Manifest) -> None:
    """Refuse a dataset whose order or choice of documents holds only for all of its parts.

    Raises:
        UsageError: naming what it has.
    """
    specs = [manifest.spec, *(each.spec for each in manifest.merged)]
    options = {
        "shuffle": any(spec.shuffle for spec in specs),
        "deduplicate": any(spec.deduplicate or spec.lists_copies for spec in specs),
    }
    if found := [name for name, is_set in options.items() if is_set]:
        raise UsageError(
            f"{storage} was made with {' and '.join(found)}, which holds for all of its documents "
            "together. Use a dataset of the same sources that was made without it, or mix datasets "
            "in training, as streams."
        )


def _require_same(
    first_storage: Storage, first: Manifest, storage: Storage, manifest: Manifest
) -> None:
    """Refuse what does not go together.

    Raises:
        ConfigMismatchError: naming every field.
    """
    ours, theirs = first.spec, manifest.spec
    alike = {name: getattr(ours, name) for name in _OF_SOURCES}
    if ours.imported and theirs.imported:
        alike["imported"] = ours.imported
    words = {"ours": f"{first_storage} has", "theirs": f"{storage} has"}
    lines = ours.differences(theirs.model_copy(update=alike), **words)
    if not lines and {*first.columns} != {*manifest.columns}:
        lines = [
            f"columns: {words['ours']} {first.columns!r}, {words['theirs']} {manifest.columns!r}"
        ]
    if lines:
        raise ConfigMismatchError(
            f"{first_storage} and {storage} cannot be merged:\n  "
            + "\n  ".join(lines)
            + "\nShard one of them again with the values of the other, or mix them as streams."
        )


def _require_other_sources(opened: Iterable[tuple[Storage, Sequence[PartRecord]]]) -> None:
    """Refuse two datasets that are made of the same range of bytes of a source file.

    Raises:
        UsageError: naming the first file.
    """
    # holders: for each file, the datasets that are made of it, and their spans of it
    holders: dict[str, dict[Storage, list[SpanRecord]]] = defaultdict(lambda: defaultdict(list))
    for storage, records in opened:
        for each in chain.from_iterable(record.made_of for record in records):
            holders[each.source.url][storage].append(each)
    for url, held in sorted(holders.items()):
        for (one, spans), (other, others) in combinations(held.items(), 2):
            if any(starmap(_overlap, product(spans, others))):
                raise UsageError(
                    f"{url} is a source of {one} and of {other}: its texts would be there twice. "
                    "Leave one out, or pass --repeats to have them twice."
                )


def _overlap(one: SpanRecord, other: SpanRecord) -> bool:
    (start, end), (begin, stop) = (each.span or (0, each.source.size) for each in (one, other))
    return max(start, begin) < min(end, stop)


def renumbered(record: PartRecord, number: int) -> PartRecord:
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
    return record.model_copy(update={"part": number, "splits": splits, "documents": documents})


def renumbered_columns(added: AddedColumns, by: int) -> AddedColumns:
    """Columns that were added to some parts, whose numbers grow by as much."""
    first = added.first_part + by
    files = tuple(
        file.model_copy(update={"path": columns_path(added.table, part)})
        for part, file in enumerate(added.files, first)
    )
    return added.model_copy(update={"first_part": first, "files": files})


def _members(manifest: Manifest) -> tuple[MergedDataset, ...]:
    """The members that a merged dataset lists for a dataset: itself, or its own members."""
    own = MergedDataset(
        manifest=content_hash(to_json(manifest)),
        parts=len(manifest.parts),
        spec=manifest.spec,
        node_partition=manifest.node_partition,
    )
    return manifest.members or (own,)
