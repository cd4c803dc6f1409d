"""The description of a dataset: its configuration, counts, document lengths, runs, near copies."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import ShardmillError, one_line
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.duplicates import ROW_BITS, NearDuplicates, codes
from streaming_ext.format.layout import RUNS_FOLDER, Split
from streaming_ext.format.manifest import Manifest, ShuffleSummary, SplitSummary
from streaming_ext.format.provenance import SourceRow
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import content_hash, to_json
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store import Storage
from streaming_ext.text.formats import format_of
from streaming_ext.text.listing import list_sources
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.reading.dataset_files import DatasetFiles, open_dataset, open_tokenizer, read_record
from tasks.core.reading.documents import (
    PartOfDataset,
    document_codes,
    duplicates_of,
    listed_documents,
)
from tasks.core.reporting.lengths import Lengths
from tasks.core.reporting.report import RunReport

_MOST: Final = 10  # groups or pairs in a description
_SHOWN_CHARACTERS: Final = 240  # per text
_LARGEST: Final = 2**28  # bytes of a source that is read for a single text


@dataclass(frozen=True, kw_only=True, slots=True)
class Witness:
    """A document that stays, and the beginning of its text."""

    source_row: SourceRow
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NearGroup:
    """The number of near copies that were left out for a witness."""

    witness: Witness
    documents: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NearPair:
    """A near copy that was left out, and its similarity to its witness.

    Attributes:
        text: the beginning of the copy's text, read from its source; or, in brackets, why that is
            not possible.
    """

    source_row: SourceRow
    text: str
    similarity: float
    witness: Witness


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceLoss:
    """The number of near copies among the documents of a source file."""

    source: str
    documents: int
    left_out: int

    def __str__(self) -> str:
        part = f"{self.left_out:,} of {self.documents:,} documents"
        return f"{self.source} lost {part} as near copies"


@dataclass(frozen=True, kw_only=True, slots=True)
class NearDescription:
    """The near copies that a dataset left out.

    Attributes:
        groups: the largest groups, the largest first.
        pairs: the least similar pairs, the least similar first.
        losses: the source files that lost documents, the greatest fraction first.
    """

    groups: tuple[NearGroup, ...]
    pairs: tuple[NearPair, ...]
    losses: tuple[SourceLoss, ...]


def source_losses(storage: Storage, manifest: Manifest) -> tuple[SourceLoss, ...]:
    """Count the near copies of each source file, the greatest fraction first.

    The result is empty if the dataset does not list near copies.

    Raises:
        CorruptDatasetError: a list is missing or damaged.
    """
    if manifest.spec.listed_near is None:
        return ()
    stayed, went = Counter[str](), Counter[str]()
    for part, found in _lists(storage, manifest):
        listed = listed_documents(part.files, part.record)
        named = (listed["row"].to_numpy(), listed["source"].to_numpy()), (found.rows, found.groups)
        origins = part.source_rows()
        for counter, (rows, groups) in zip((stayed, went), named, strict=True):
            numbers = origins.numbered(rows, groups)[0]
            for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
                counter[origins.files[number][0]] += int(count)
    losses = [
        SourceLoss(source=source, documents=count + stayed[source], left_out=count)
        for source, count in went.items()
    ]
    return tuple(sorted(losses, key=lambda each: (-each.left_out / each.documents, each.source)))


def _describe_near(files: DatasetFiles, manifest: Manifest) -> NearDescription | None:
    """Find the near copies that are worth a look; return None if the dataset does not list them.

    Raises:
        CorruptDatasetError: a file that is read is missing or damaged.
    """
    if manifest.spec.listed_near is None:
        return None
    storage = files.storage
    witnesses = [np.empty(0, np.int64)]
    pairs: list[tuple[float, int, SourceRow]] = []
    for part, found in _lists(storage, manifest):
        named, origins = codes(found.first_groups, found.first_rows), part.source_rows()
        witnesses.append(named)
        for at in np.argsort(found.similarities, kind="stable")[:_MOST].tolist():
            origin = origins.of(int(found.rows[at]), int(found.groups[at]))
            pairs.append((float(found.similarities[at]), int(named[at]), origin))
        pairs = sorted(pairs, key=lambda pair: pair[0])[:_MOST]
    numbers, counts = np.unique(np.concatenate(witnesses), return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:_MOST].tolist()
    wanted = np.array([*numbers[largest], *(witness for _, witness, _ in pairs)], np.int64)
    shown = _witnesses(storage, manifest, np.unique(wanted), open_tokenizer(files, manifest.spec))
    return NearDescription(
        groups=tuple(
            NearGroup(witness=shown[int(numbers[at])], documents=int(counts[at])) for at in largest
        ),
        pairs=tuple(
            NearPair(
                source_row=origin,
                text=_text_at(origin, manifest.spec.read_options),
                similarity=similarity,
                witness=shown[witness],
            )
            for similarity, witness, origin in pairs
        ),
        losses=source_losses(storage, manifest),
    )


def _text_at(origin: SourceRow, options: ReadOptions) -> str:
    """Return the beginning of the text of a source row; or, in brackets, why it is not known."""
    if options.ids is not None:
        return "[its source holds no text]"
    try:
        (source,) = list_sources([origin.source], any_name=True)
        if source.size > _LARGEST:
            return "[its source is large]"
        reads = format_of(source.url, options)
        span = (origin.from_byte, source.size) if origin.from_byte else None
        for batch in reads.read(SourceFileBytes(source), options, span=span):
            at = int(np.searchsorted(batch.rows, origin.row))
            if at < len(batch.rows):
                text = batch.texts[at].as_py() if batch.rows[at] == origin.row else ""
                return _beginning(text)
    except (ShardmillError, OSError) as error:
        return f"[{one_line(error)}]"
    return "[its source has fewer rows now]"


def _lists(storage: Storage, manifest: Manifest) -> Iterator[tuple[PartOfDataset, NearDuplicates]]:
    """Yield each part, and the near copies that it left out."""
    for number in range(len(manifest.parts)):
        part = PartOfDataset(storage, manifest, number)
        found = duplicates_of(part.files, part.record)
        assert isinstance(found, NearDuplicates)  # noqa: S101  (see `DatasetSpec.listed_near`)
        yield part, found


def _witnesses(
    storage: Storage, manifest: Manifest, wanted: Ints, tokenizer: Tokenizer
) -> dict[int, Witness]:
    """Return the documents with the wanted codes, and the beginnings of their texts."""
    shown: dict[int, Witness] = {}
    for number in range(len(manifest.parts)):
        part = PartOfDataset(storage, manifest, number)
        listed, origins = listed_documents(part.files, part.record), part.source_rows()
        own = document_codes(listed)
        is_wanted = np.isin(own, wanted)
        for at, block in part.blocks(listed) if is_wanted.any() else ():
            chosen = np.flatnonzero(is_wanted[at])
            texts = block.texts(tokenizer, chosen)
            for code, text in zip(own[at[chosen]].tolist(), texts, strict=True):
                origin = origins.of(code & (2**ROW_BITS - 1), code >> ROW_BITS)
                shown[code] = Witness(
                    source_row=origin, text=_beginning(text.decode(errors="replace"))
                )
    return shown


def _beginning(text: str) -> str:
    return " ".join(text[:_SHOWN_CHARACTERS].split())


_MAX_RUNS = 5
_COUNTS = ("tokens", "duplicate_documents", "duplicate_tokens", "text_bytes")
_REPORT = re.compile(rf"{RUNS_FOLDER}/[^/]+\.json")
_MAX_RUN_BYTES = 2**26


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitDescription:
    """A split: its summary in the manifest, and the bytes of its shards unpacked and stored."""

    summary: SplitSummary
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetDescription:
    """The description that `inspect` prints.

    Attributes:
        lengths: the tokens per document of all splits.
        parts: the records of all parts, in order.
        runs: the latest runs, the last one first.
        near: the near copies that were left out, if they are listed.
    """

    dataset: str
    manifest: Manifest
    lengths: Lengths
    parts: tuple[PartRecord, ...]
    runs: tuple[RunReport, ...]
    near: NearDescription | None = None

    @property
    def generation(self) -> str:
        """The content hash of the manifest."""
        return content_hash(to_json(self.manifest))

    @property
    def splits(self) -> dict[Split, SplitDescription]:
        """The description of each split."""
        described = {}
        for split, summary in self.manifest.splits.items():
            held = [part.splits[split] for part in self.parts if split in part.splits]
            shards = [shard for each in held for shard in each.shards]
            described[split] = SplitDescription(
                summary=summary,
                raw_bytes=sum(shard.raw_bytes for shard in shards),
                stored_bytes=sum(shard.size for shard in shards),
            )
        return described

    @property
    def counted(self) -> Sequence[ShuffleSummary | PartRecord]:
        """The objects that count left-out rows: the summary of all sources, or each part."""
        return self.parts if self.manifest.shuffled is None else [self.manifest.shuffled]

    @property
    def files(self) -> int:
        """The number of source files; a part may be a span of one file, or several files."""
        if self.manifest.shuffled is not None:
            return self.manifest.shuffled.files
        return len({source_span.source.url for part in self.parts for source_span in part.made_of})

    @property
    def documents(self) -> int:
        """The number of documents of all splits."""
        return sum(split.documents for split in self.manifest.splits.values())

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text per token, without end-of-text ids."""
        return self.manifest.text_bytes / self.lengths.tokens if self.lengths.tokens else 0.0

    def facts(self) -> dict[str, Any]:
        """Return the description as plain values for JSON."""
        manifest = self.manifest
        facts = {
            "dataset": self.dataset,
            "spec": manifest.spec.model_dump(mode="json", exclude_defaults=True),
            "documents": self.documents,
            **{name: getattr(manifest, name) for name in _COUNTS},
            "bytes_per_token": self.bytes_per_token,
            "lengths": self.lengths.figures(),
            "splits": {
                name: {
                    **split.summary.model_dump(mode="json"),
                    "raw_bytes": split.raw_bytes,
                    "stored_bytes": split.stored_bytes,
                }
                for name, split in self.splits.items()
            },
            "parts": [part.model_dump(mode="json", exclude_defaults=True) for part in self.parts],
            "runs": [run.model_dump(mode="json") for run in self.runs],
            "manifest": self.generation,
        }
        if manifest.shuffled is not None:
            facts["shuffled"] = manifest.shuffled.model_dump(mode="json", exclude_defaults=True)
        if self.near is not None:
            facts["near"] = asdict(self.near)
        if manifest.added:
            facts["added"] = [*manifest.columns[len(manifest.spec.keep_columns) :]]
        if manifest.merged:
            facts["merged"] = len(manifest.merged)
        if manifest.generations:
            facts["generations"] = [each.model_dump(mode="json") for each in manifest.generations]
        return facts


def describe(storage: Storage, *, generation: str | None = None) -> DatasetDescription:
    """Read the metadata of a dataset and the lengths of its documents; no shard is read.

    Args:
        storage: the storage of the dataset.
        generation: see `open_dataset`.

    Raises:
        NotADatasetError: there is no published dataset.
        CorruptDatasetError: a file that is read is missing or damaged.
    """
    files, manifest = open_dataset(storage, generation=generation)
    lengths = Lengths()

    def look_at(part: int) -> tuple[PartRecord, Lengths]:
        record = read_record(files, manifest, part)
        of_part = Lengths()
        of_part.add(listed_documents(files, record)["tokens"].to_numpy())
        return record, of_part

    records: list[PartRecord] = []
    for record, of_part in mapped_ahead(look_at, range(len(manifest.parts))):
        records.append(record)
        lengths.include(of_part)
    return DatasetDescription(
        dataset=str(storage),
        manifest=manifest,
        lengths=lengths,
        parts=tuple(records),
        runs=tuple(_read_runs(files)),
        near=_describe_near(files, manifest),
    )


def _read_runs(files: DatasetFiles) -> Iterator[RunReport]:
    """Yield the latest reports; skip unreadable ones, as nothing depends on them."""
    paths = [
        path
        for path, size in files.sizes.items()
        if _REPORT.fullmatch(path) and size < _MAX_RUN_BYTES
    ]
    for path in sorted(paths, reverse=True)[:_MAX_RUNS]:
        try:
            yield RunReport.model_validate_json(files.storage.read(path))
        except (OSError, ValidationError):
            continue
