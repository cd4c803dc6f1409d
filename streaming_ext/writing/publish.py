"""What makes recorded parts one dataset: the index and sums of each split, and the tokenizer."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from streaming_ext.format.layout import TOKENIZER_FOLDER, Split, index_path
from streaming_ext.format.manifest import SplitSummary
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.text.tokenizer.load import TOKENIZER_FILES


def publish_splits(
    spec: DatasetSpec, parts: Sequence[PartRecord], storage: Storage
) -> dict[Split, SplitSummary]:
    """Put the indexes of the splits; returns the sums over their parts."""
    made = split_indexes(spec, parts)
    for summary, index in made.values():
        storage.put(summary.index.path, index)
    return {split: summary for split, (summary, _) in made.items()}


def split_indexes(
    spec: DatasetSpec, parts: Sequence[PartRecord]
) -> dict[Split, tuple[SplitSummary, bytes]]:
    """The sums over all parts of each split, and its index."""
    made = {}
    for split in filled_splits(spec, parts):
        index = merged_index(split, parts, spec)
        record = FileRecord.of(index_path(split), index)
        made[split] = summarize_split(split, parts, record), index
    return made


def merged_index(split: Split, parts: Iterable[PartRecord], spec: DatasetSpec) -> bytes:
    """The index of a split: the shards of all parts, in the order of the parts."""
    return spec.shard_format.index(shard for part in parts for shard in part.splits[split].shards)


def filled_splits(spec: DatasetSpec, parts: Iterable[PartRecord]) -> list[Split]:
    """The splits that hold a sample: readers take no empty one, so none is published."""
    filled = {name for part in parts for name, split in part.splits.items() if split.shards}
    return [split for split in spec.splits if split in filled]


def summarize_split(split: Split, parts: Iterable[PartRecord], index: FileRecord) -> SplitSummary:
    """The sums over all parts of a split."""
    splits_of_parts = [part.splits[split] for part in parts]
    return SplitSummary(
        index=index,
        documents=sum(each.documents for each in splits_of_parts),
        tokens=sum(each.tokens for each in splits_of_parts),
        padding=sum(each.padding for each in splits_of_parts),
        samples=sum(each.samples for each in splits_of_parts),
        shards=sum(len(each.shards) for each in splits_of_parts),
    )


def put_tokenizer(folder: Path, kind: str, storage: Storage) -> list[FileRecord]:
    """Put the files of a saved tokenizer beside the parts; returns their records."""
    records = []
    for name in sorted(TOKENIZER_FILES[kind]):
        path, data = f"{TOKENIZER_FOLDER}/{name}", (folder / name).read_bytes()
        storage.put(path, data)
        records.append(FileRecord.of(path, data))
    return records
