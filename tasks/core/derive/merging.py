"""The contents of a published dataset or export: all files, with sizes and hashes, by part.

A merged dataset has the parts of each dataset in turn; they get new numbers, and keep their bytes.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, product, starmap

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.layout import EXPORT, MANIFEST, columns_path, documents_path
from streaming_ext.format.manifest import AddedColumns, Manifest, MergedDataset, index_file
from streaming_ext.format.record import PartRecord, SpanRecord
from streaming_ext.format.schema import FileRecord, content_hash, from_json, to_json
from streaming_ext.store import Storage, open_storage
from streaming_ext.writing.publish import split_indexes
from tasks.core.derive.export_format import ExportRecord, is_export, read_export
from tasks.core.engine.output_files import Stretch, hash_of
from tasks.core.reading.dataset_files import beside_parts, read_dataset, read_recorded
from tasks.core.workers.messages import Message


class Move(Message):
    """A file to put on the output.

    Attributes:
        root: the URL of the dataset or export that has the file.
        path: the path of the file there.
        spans: all bytes of the file, with its path on the output.
    """

    root: str
    path: str
    spans: tuple[Stretch, ...]

    @classmethod
    def of(cls, root: str, file: FileRecord, to: str) -> "Move":
        """Return the move of a recorded file to a path."""
        return cls(root=root, path=file.path, spans=(Stretch.of(file)._replace(path=to),))

    @property
    def to(self) -> str:
        """The path of the file on the output."""
        return self.spans[0].path

    @property
    def size(self) -> int:
        """The size of the file, in bytes."""
        return sum(span.size for span in self.spans)


class FileGroup(Message):
    """Files that are put by one job; the texts are put last.

    Attributes:
        moves: the files to put.
        texts: the contents of small files, such as records, by path.
        documents, tokens: the numbers of documents and tokens in the files, if they are a part.
    """

    moves: tuple[Move, ...] = ()
    texts: dict[str, str] = {}  # noqa: RUF012  (pydantic copies it)
    documents: int = 0
    tokens: int = 0

    @property
    def spans(self) -> list[Stretch]:
        """All bytes of the files on the output."""
        texts = (FileRecord.of(path, text.encode()) for path, text in self.texts.items())
        return [*(span for move in self.moves for span in move.spans), *map(Stretch.of, texts)]


def together(groups: Sequence[FileGroup]) -> FileGroup:
    """Join groups of files into one."""
    return FileGroup(
        moves=tuple(move for group in groups for move in group.moves),
        texts={path: text for group in groups for path, text in group.texts.items()},
        documents=sum(group.documents for group in groups),
        tokens=sum(group.tokens for group in groups),
    )


@dataclass(frozen=True, slots=True)
class Contents:
    """All files of a dataset or an export.

    Attributes:
        parts: the files of each part with its record; the last group also has the files of no part.
        path: the path of the manifest.
        data: the content of the manifest.
    """

    parts: tuple[FileGroup, ...]
    path: str
    data: bytes

    @property
    def manifest(self) -> FileRecord:
        """The path, size and hash of the manifest."""
        return FileRecord.of(self.path, self.data)

    @property
    def spans(self) -> list[Stretch]:
        """All bytes of all files except for the manifest."""
        return [span for group in self.parts for span in group.spans]


def contents_of(storage: Storage) -> Contents:
    """List the contents of a storage; only metadata are read.

    Raises:
        NotADatasetError: nothing is published there.
        CorruptDatasetError: the metadata are damaged.
    """
    if is_export(storage):
        return _of_export(storage)
    return _of_dataset(str(storage), hash_of(storage, MANIFEST))


@lru_cache(1)  # a run plans before and after it takes the output
def _of_dataset(root: str, _: str | None) -> Contents:
    storage = open_storage(root)
    files, manifest, records = read_dataset(storage)
    # Indexes are read from where no extension replaces them.
    kept = {
        summary.index.path: index_file(split, summary.index, files.sizes)
        for split, summary in manifest.splits.items()
    }
    rest = tuple(
        Move.of(root, kept.get(file.path, file), file.path) for file in beside_parts(manifest)
    )
    *groups, last = (part_files(root, record, record) for record in records)
    groups.append(together([last, FileGroup(moves=rest)]))
    return Contents(tuple(groups), MANIFEST, to_json(manifest))


def part_files(root: str, held: PartRecord, record: PartRecord) -> FileGroup:
    """Return the group of the files of a part.

    Args:
        root: the URL of the dataset that has the files.
        held: the record of the part in that dataset.
        record: the record on the output, perhaps with another number.
    """
    files = zip(held.files(), record.files(), strict=True)
    return FileGroup(
        moves=tuple(Move.of(root, before, after.path) for before, after in files),
        texts={record.summary().record.path: to_json(record).decode()},
        documents=record.documents_kept,
        tokens=record.tokens_kept,
    )


def _of_export(storage: Storage) -> Contents:
    """Return the contents of an export; a file of several parts belongs to the first of them."""
    manifest, root = read_export(storage), str(storage)

    def read(file: FileRecord) -> ExportRecord:
        return from_json(ExportRecord, read_recorded(storage, file), where=f"{storage}/{file.path}")

    records = list(mapped_ahead(read, manifest.records))
    spans: dict[str, list[Stretch]] = {}
    owners: dict[str, int] = {}  # the part of each file
    for part, written in enumerate([*(record.spans for record in records), manifest.spans]):
        for span in written:
            spans.setdefault(span.path, []).append(span)
            owners.setdefault(span.path, min(part, len(records) - 1))
    moves: list[list[Move]] = [[] for _ in records]
    for path, part in owners.items():
        moves[part].append(Move(root=root, path=path, spans=tuple(sorted(spans[path]))))
    parts = [
        FileGroup(
            moves=tuple(own),
            texts={file.path: to_json(record).decode()},
            documents=record.documents,
            tokens=record.tokens,
        )
        for own, file, record in zip(moves, manifest.records, records, strict=True)
    ]
    return Contents(tuple(parts), EXPORT, to_json(manifest))


# Fields that may differ: they say how sources were read, so they do not change other sources' ids.
_OF_SOURCES = frozenset(
    {"text_column", "text_separator", "source_format", "on_bad_document", "filters", "subset"}
)


@lru_cache(1)  # a run plans before and after it takes the output
def merged(urls: tuple[str, ...], _hashes: tuple[str | None, ...], *, repeats: bool) -> Contents:
    """Return the contents of a merge of datasets in this order; only metadata are read.

    Args:
        urls: the URLs of at least two datasets.
        _hashes: the hashes of their manifests, a key of the cache.
        repeats: True if they may be made from the same source files.

    Raises:
        ConfigMismatchError: they cannot be merged; the message names every field that differs.
        UsageError: they are shuffled or deduplicated, or have a source file in common.
        DatasetError: one is not a dataset, or its metadata are damaged.
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
    spec = first.spec.model_copy(update={"subset": None})  # the rule describes one dataset
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
    """Refuse a dataset that is shuffled or deduplicated, which holds only for all parts together.

    Raises:
        UsageError: it is; the message names the option.
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
    """Refuse datasets that cannot be merged.

    Raises:
        ConfigMismatchError: they differ; the message names every field that differs.
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
    """Refuse datasets that have bytes of a source file in common.

    Raises:
        UsageError: two datasets do; the message names the first file.
    """
    # holders: file -> dataset -> the spans of the file that the dataset is made of
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
    """Return the record of a part under another number; only the names of its files change."""
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
    """Return the entry of added columns after the numbers of its parts have grown by `by`."""
    first = added.first_part + by
    files = tuple(
        file.model_copy(update={"path": columns_path(added.table, part)})
        for part, file in enumerate(added.files, first)
    )
    return added.model_copy(update={"first_part": first, "files": files})


def _members(manifest: Manifest) -> tuple[MergedDataset, ...]:
    """Return the members that a merge lists for a dataset: the dataset, or its own members."""
    own = MergedDataset(
        manifest=content_hash(to_json(manifest)),
        parts=len(manifest.parts),
        spec=manifest.spec,
        node_partition=manifest.node_partition,
    )
    return manifest.members or (own,)
