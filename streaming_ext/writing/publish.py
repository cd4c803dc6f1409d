"""Publication of recorded parts as one dataset: indexes and sums of splits, and the tokenizer."""

from collections.abc import Iterable, Sequence

from streaming_ext.base.errors import SourceError
from streaming_ext.format.layout import TOKENIZER_FOLDER, Split, index_path
from streaming_ext.format.manifest import SplitSummary
from streaming_ext.format.record import PartCounts, PartRecord, RowCounts
from streaming_ext.format.schema import FileRecord
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.text.tokenizer.probes import PROBES_PATH, probes_of
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.part_documents import no_text


def require_documents(parts: Iterable[PartCounts], where: str, *, all_parts: bool = True) -> None:
    """Refuse sources without a text, and an output without a document.

    Only files that were cut into several parts are checked: others are refused when they are read.

    Args:
        parts: the counts of each part.
        where: the output's name in messages.
        all_parts: True if these are all parts of the output.

    Raises:
        SourceError: the message names the source, or says why rows were left out.
    """
    cut: dict[str, list[PartCounts]] = {}
    counted = [*parts]
    for part in counted:
        cut.setdefault(part.source.url, []).extend([part] if part.made_of[0].span else [])
    for url, spans in cut.items():
        total = RowCounts.total(spans)
        if total.no_text:
            raise SourceError(no_text(url, total))
    if all_parts and not any(part.documents_kept for part in counted):
        total = RowCounts.total(counted)
        why = total.left_out_text or ("none is chosen" if total.rows else "the sources are empty")
        raise SourceError(
            f"{where}: no document is left of {total.rows:,} rows: {why}. Use another output, with "
            "other sources or filters."
        )


def publish_splits(
    spec: DatasetSpec, parts: Sequence[PartRecord], storage: Storage
) -> dict[Split, SplitSummary]:
    """Put the indexes of the splits; return the sums over their parts.

    Raises:
        SourceError: there is no document.
    """
    require_documents(parts, str(storage))
    made = split_indexes(spec, parts)
    for summary, index in made.values():
        storage.put(summary.index.path, index)
    return {split: summary for split, (summary, _) in made.items()}


def split_indexes(
    spec: DatasetSpec, parts: Sequence[PartRecord]
) -> dict[Split, tuple[SplitSummary, bytes]]:
    """Return the sums over all parts, and the index, of each split that holds a sample.

    Empty splits are not published, because readers refuse them.
    """
    made: dict[Split, tuple[SplitSummary, bytes]] = {}
    for split in spec.splits:
        index, held = merged_index(split, parts, spec), [part.splits[split] for part in parts]
        if shards := sum(len(each.shards) for each in held):
            counted = ("documents", "tokens", "padding", "samples")
            sums = {name: sum(getattr(each, name) for each in held) for name in counted}
            listed = FileRecord.of(index_path(split), index)
            made[split] = SplitSummary(index=listed, shards=shards, **sums), index
    return made


def merged_index(split: Split, parts: Iterable[PartRecord], spec: DatasetSpec) -> bytes:
    """Return the index of a split: the shards of all parts, in the order of the parts."""
    return spec.shard_format.index(shard for part in parts for shard in part.splits[split].shards)


def tokenizer_data(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return the files of a tokenizer, and its probes, by their paths in a dataset."""
    data = {f"{TOKENIZER_FOLDER}/{name}": data for name, data in tokenizer.files().items()}
    return data | {PROBES_PATH: probes_of(tokenizer)}


def put_tokenizer(tokenizer: Tokenizer, storage: Storage) -> list[FileRecord]:
    """Put the files of a tokenizer beside the parts; return their records."""
    made = sorted(tokenizer_data(tokenizer).items())
    for path, data in made:
        storage.put(path, data)
    return [FileRecord.of(path, data) for path, data in made]
