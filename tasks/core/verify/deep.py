"""Comparing a part with its source: is it still there, and a sample of documents, id by id."""

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.layout import SPLITS, Split, documents_path
from streaming_ext.dataset.places import PlacesOfPart
from streaming_ext.dataset.provenance import documents_limit, read_provenance
from streaming_ext.dataset.record import PartRecord, PieceRecord, SourceIdentity
from streaming_ext.dataset.shard import Shard
from streaming_ext.errors import (
    CorruptDatasetError,
    ShardmillError,
    SourceError,
    StorageDownError,
    StorageError,
    UsageError,
)
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.sources import SourceFile, identify, is_remote
from streaming_ext.text.sources.fetch import came_unchecked, fetch, listed_again
from streaming_ext.text.sources.fetch_piece import fetch_piece
from streaming_ext.text.token_sets.id_documents import IdsReference
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.imports.sources import list_token_files
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.reading.part_documents import PartDocuments, PieceHere
from tasks.core.reading.shard_tokens import read_tokens
from tasks.core.verify.duplicates import duplicates_of
from tasks.core.verify.findings import Outcome
from tasks.core.verify.rows import Encodes, compare_rows

DEFAULT_SAMPLE = 200  # documents
MAX_SAMPLED_TOKENS = 2**17  # longer documents are left to the checks of every byte


@dataclass(frozen=True, slots=True)
class Chosen:
    """A document to tokenize again; its ids begin at `start` of its split's stream.

    Attributes:
        source: number of its source in a shuffled dataset.
    """

    row: int
    split: Split
    start: int
    tokens: int
    source: int = 0


def choose_parts(documents: Mapping[int, int], sample: int, seed: int) -> dict[int, int]:
    """How many documents to take of which part: as evenly as can be, the parts drawn by seed.

    Args:
        documents: of each part.
        sample: documents in all; fewer only where there are no more.
        seed: decides which parts they are of.
    """
    parts = list(documents)
    random.Random(seed).shuffle(parts)  # noqa: S311
    chosen = {
        part: min(
            documents[part], (index + 1) * sample // len(parts) - index * sample // len(parts)
        )
        for index, part in enumerate(parts)
    }
    # What small parts lack of their share, others have more of.
    left = sample - sum(chosen.values())
    while left and (others := [part for part in parts if chosen[part] < documents[part]]):
        each = max(1, left // len(others))
        for part in others:
            more = min(each, left, documents[part] - chosen[part])
            chosen[part] += more
            left -= more
    return {part: share for part, share in sorted(chosen.items()) if share}


def verify_source(
    record: PartRecord,
    files: DatasetFiles,
    tokenizer: Tokenizer,
    *,
    count: int,
    seed: int,
    report: Callable[[int], None],
) -> Outcome:
    """Read a part's source again and compare; F5 for `count` documents, F7 for all.

    Raises:
        StoppedError: `report` said so.
    """
    with tempfile.TemporaryDirectory(prefix="shardmill-verify-") as folder:
        return _verify_source(
            record, files, tokenizer, Path(folder), count=count, seed=seed, report=report
        )


def _verify_source(
    record: PartRecord,
    files: DatasetFiles,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    count: int,
    seed: int,
    report: Callable[[int], None],
) -> Outcome:
    out = Outcome()
    here: list[PieceHere] = []
    options = record.spec.read_options
    reference = tokenizer if record.spec.imported is None else IdsReference()
    for piece in record.made_of:
        url = piece.source.url
        try:
            local = source_here(piece, folder, options)
        except (ShardmillError, OSError) as error:
            # The bytes that the dataset was made from are not to be had.
            text = str(error)
            out.found(url, text.removeprefix(f"{url}: "))
            continue
        if came_unchecked(local):
            out.unchecked.add(url)
        here.append(PieceHere(url, local, piece.span, size_of(piece)))
    size = sum(map(size_of, record.made_of))
    if len(here) < len(record.made_of):
        report(size)
        return out
    reading = ""

    def begin(piece: PieceHere) -> None:
        nonlocal reading
        reading = piece.url

    try:
        provenance = files.read(
            record.documents, limit=documents_limit(record.rows, len(record.spec.keep_columns))
        )
        chosen = choose(record, provenance, count, seed)
        texts = compare_rows(
            record,
            PartDocuments(here, options, begin=begin),
            provenance,
            reference,
            wanted={c.row for c in chosen},
            go_on=lambda: report(0),
            out=out,
            left_out=_left_out(record, files),
        )
        compare_ids(
            record, files, reference,
            chosen=chosen, texts=texts, name=PlacesOfPart(record).of, out=out,
        )  # fmt: skip
    except (CorruptDatasetError, StorageError) as error:
        # Found and named by the checks that need no source; without them it is named here.
        out.found(documents_path(record.part), str(error))
    except StorageDownError:
        raise
    except ShardmillError as error:
        out.found(reading, str(error).removeprefix(f"{reading}: "))
    report(size)
    return out


def _left_out(record: PartRecord, files: DatasetFiles) -> npt.NDArray[np.int64]:
    """Rows of a part that were left out as copies."""
    none = np.empty(0, np.int64)
    return np.concatenate([none, *(found.rows for found in duplicates_of(record, files))])


def size_of(piece: PieceRecord) -> int:
    """Of a piece, in bytes."""
    return piece.source.size if piece.span is None else piece.span[1] - piece.span[0]


def source_here(piece: PieceRecord, folder: Path, options: ReadOptions) -> Path:
    """Where the bytes lie that a piece was made from; remote ones are fetched to `folder`.

    Raises:
        CorruptDatasetError: they are gone, or others.
        ShardmillError: they cannot be had.
    """
    source = piece.source
    local = Path(source.url)
    if is_remote(source.url):
        now = _listed_again(source, options)
    elif local.is_file():
        now = SourceFile(url=source.url, size=local.stat().st_size)
    else:
        raise CorruptDatasetError("the source file is gone, its documents cannot be compared")
    if now.size != source.size:
        raise CorruptDatasetError(f"{now.size} bytes, the dataset was made from {source.size}")
    version = now.pin or identify(now, local, span=piece.span, options=options).version
    if version != source.version:
        raise CorruptDatasetError(
            f"its content is {version}, the dataset was made from {source.version}"
        )
    if not now.remote:
        return local
    if piece.span is None:
        return fetch(now, folder)[0]
    return fetch_piece(now, folder, options=options, span=piece.span)[0]


def _listed_again(source: SourceIdentity, options: ReadOptions) -> SourceFile:
    if options.ids is None:
        return listed_again(source)
    try:
        (now,) = list_token_files([source.url], options.ids)
    except UsageError as error:
        raise SourceError(f"{source.url}: gone ({error})") from error
    return now


def choose(record: PartRecord, provenance: bytes, count: int, seed: int) -> list[Chosen]:
    """Draw documents; longer ones than `MAX_SAMPLED_TOKENS` are passed over."""
    total = sum(split.documents for split in record.splits.values())
    generator = random.Random(f"{seed}:{record.part}")  # noqa: S311
    # Twice as many as wanted, for some are too long.
    drawn = generator.sample(range(total), min(total, 2 * count))
    chosen: dict[int, Chosen] = {}
    wanted = np.sort(np.array(drawn, np.int64))
    starts = dict.fromkeys(SPLITS, 0)
    first = 0
    for documents in read_provenance(provenance):
        # offsets: (documents of the batch,), where each begins in the stream of its split
        offsets = np.zeros(len(documents.rows), np.int64)
        for split in SPLITS:
            mask = documents.of(split)
            ends = starts[split] + np.cumsum(documents.tokens[mask] + 1)
            offsets[mask] = ends - documents.tokens[mask] - 1
            starts[split] = int(ends[-1]) if len(ends) else starts[split]
        after = first + len(documents.rows)
        for number in wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, after)]:
            index = int(number) - first
            tokens = int(documents.tokens[index])
            if tokens <= MAX_SAMPLED_TOKENS:
                split = SPLITS[documents.splits[index]]
                row, start = int(documents.rows[index]), int(offsets[index])
                source = 0 if documents.sources is None else int(documents.sources[index])
                chosen[int(number)] = Chosen(row, split, start, tokens, source)
        first = after
    return [chosen[number] for number in drawn if number in chosen][:count]


def compare_ids(
    record: PartRecord,
    files: DatasetFiles,
    tokenizer: Encodes,
    *,
    chosen: list[Chosen],
    texts: dict[int, Any],
    name: Callable[[int], object],
    out: Outcome,
) -> None:
    """Tokenize the chosen documents and compare them with the ids in the shards.

    Args:
        chosen: by their rows, or by other numbers of their own.
        texts: of each, by the same; of a document of ids, these as bytes.
        name: what each is called.
    """
    eot_id = record.spec.tokenizer.eot_id
    for document, found in _ids_on_disk(record, files, chosen):
        text = texts.get(document.row)
        if text is None:
            continue
        shard, ids = found
        expected = np.array([*tokenizer.encode(text), eot_id], np.uint32)
        out.count(retokenized=1, retokenized_tokens=len(expected))
        if len(expected) != document.tokens + 1:
            out.found(
                documents_path(record.part),
                f"{name(document.row)} is listed with {document.tokens} tokens, the reference "
                f"makes {len(expected) - 1} of its text",
            )
        common = min(len(ids), len(expected))
        different = np.flatnonzero(ids[:common] != expected[:common])
        if len(different):
            position = int(different[0])
            out.found(
                f"{document.split}/{shard.name}",
                f"{name(document.row)} has other ids from {position} on: "
                f"{ids[position : position + 5].tolist()}, the reference makes "
                f"{expected[position : position + 5].tolist()}",
            )


def _ids_on_disk(
    record: PartRecord, files: DatasetFiles, chosen: list[Chosen]
) -> Iterator[tuple[Chosen, tuple[Shard, npt.NDArray[np.uint32]]]]:
    """The ids of each document with its end-of-text id, in the order of the shards.

    Each shard that is needed is read once; documents in a damaged one, which is found by others,
    are left out.
    """
    for split, held in record.splits.items():
        waiting = sorted((c for c in chosen if c.split == split), key=lambda c: c.start)
        begun: dict[int, list[npt.NDArray[np.uint32]]] = {}
        first = 0
        for shard in held.shards:
            after = first + shard.samples * record.spec.sequence_length
            here = [c for c in waiting if c.start < after and c.start + c.tokens + 1 > first]
            if here:
                try:
                    flat = read_tokens(files, split, shard, record.spec).reshape(-1)
                except (CorruptDatasetError, StorageError):
                    waiting = [c for c in waiting if c not in here]
                    here = []
            for c in here:
                end = c.start + c.tokens + 1
                piece = flat[max(c.start - first, 0) : min(end, after) - first]
                begun.setdefault(c.row, []).append(piece.astype(np.uint32))
                if end <= after:
                    yield c, (shard, np.concatenate(begun.pop(c.row)))
            first = after
