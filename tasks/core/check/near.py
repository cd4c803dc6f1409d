"""Near copies that a dataset left out, for people to judge: groups, pairs, and lost sources."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import ShardmillError, one_line
from streaming_ext.format.duplicates import NearDuplicates, codes
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.provenance import SourceRow
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store import Storage
from streaming_ext.text.formats import format_of
from streaming_ext.text.listing import list_sources
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.check.decode import decode_cut
from tasks.core.reading.dataset_files import open_dataset, open_tokenizer
from tasks.core.reading.documents import PartOfDataset, duplicates_of, listed_documents

_MOST: Final = 10  # groups and pairs
_SHOWN_TOKENS: Final = 64  # of a text
_SHOWN_CHARACTERS: Final = 240
_LARGEST: Final = 2**28  # bytes of a source that is read for one text


@dataclass(frozen=True, kw_only=True, slots=True)
class Witness:
    """A document that stays, and the beginning of its text."""

    source_row: SourceRow
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NearGroup:
    """The number of near copies that went for a witness."""

    witness: Witness
    documents: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NearPair:
    """A near copy that went, and its similarity to its witness.

    Attributes:
        text: the beginning of its text, read from its source; in brackets, why it is not known.
    """

    source_row: SourceRow
    text: str
    similarity: float
    witness: Witness


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceLoss:
    """The near copies among the documents of a source file."""

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
        losses: each source file that lost documents, the greatest part first.
    """

    groups: tuple[NearGroup, ...]
    pairs: tuple[NearPair, ...]
    losses: tuple[SourceLoss, ...]


def source_losses(storage: Storage, manifest: Manifest) -> tuple[SourceLoss, ...]:
    """The near copies of each source file, the greatest part first; none if they are not listed.

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


def describe_near(storage: Storage, *, generation: str | None = None) -> NearDescription | None:
    """Find what people should look at; None if the dataset has no lists of near copies.

    Raises:
        CorruptDatasetError: a file that is read is missing or damaged.
    """
    files, manifest = open_dataset(storage, generation=generation)
    if manifest.spec.listed_near is None:
        return None
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
    """The beginning of the text of a row of a source; in brackets, why it is not known."""
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
                return " ".join(text[:_SHOWN_CHARACTERS].split())
    except (ShardmillError, OSError) as error:
        return f"[{one_line(error)}]"
    return "[its source has fewer rows now]"


def _lists(storage: Storage, manifest: Manifest) -> Iterator[tuple[PartOfDataset, NearDuplicates]]:
    """Each part, and the near copies that it left out."""
    for number in range(len(manifest.parts)):
        part = PartOfDataset(storage, manifest, number)
        found = duplicates_of(part.files, part.record)
        assert isinstance(found, NearDuplicates)  # noqa: S101  (see `DatasetSpec.listed_near`)
        yield part, found


def _witnesses(
    storage: Storage, manifest: Manifest, wanted: Ints, tokenizer: Tokenizer
) -> dict[int, Witness]:
    """The documents with these codes, with their texts."""
    shown: dict[int, Witness] = {}
    for number in range(len(manifest.parts)):
        part = PartOfDataset(storage, manifest, number)
        origins = part.source_rows()
        for split in part.record.splits:
            listed = part.listed(split)
            own = codes(listed["source"].to_numpy(), listed["row"].to_numpy())
            chosen = np.flatnonzero(np.isin(own, wanted)).tolist()
            first, left = 0, iter([*chosen, len(own)])
            following = next(left)
            if not chosen:
                continue
            for block in part.documents(split):
                while following < first + len(block.ends):
                    end, length = (
                        int(values[following - first]) for values in (block.ends, block.lengths)
                    )
                    ids = block.stream[end - length : end - 1][:_SHOWN_TOKENS].tolist()
                    begins = tokenizer.bos_id is not None
                    data = tokenizer.decode_bytes(ids[begins:])
                    code, row = int(own[following]), listed.slice(following, 1).to_pylist()[0]
                    shown[code] = Witness(
                        source_row=origins.of(row["row"], row["source"]),
                        text=" ".join(decode_cut(data, cut_start=False, cut_end=True).split()),
                    )
                    following = next(left)
                first += len(block.ends)
                if following == len(own):
                    break
    return shown
