"""From a unit of text to its tokens: read, tokenized and split as `shardmill shard` does."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.base.arrays import Ints
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import EngineMismatchError, SourceError
from streaming_ext.from_text.engines import Engines
from streaming_ext.from_text.units import Unit
from streaming_ext.text.documents.source_format import BATCH_BYTES, DocumentBatch
from streaming_ext.text.fetch import fetch
from streaming_ext.text.fetch_piece import fetch_piece
from streaming_ext.text.formats import format_of
from streaming_ext.text.holdout import document_hashes, held_out
from streaming_ext.text.parts.part import Piece
from streaming_ext.text.sources.local import kept_as_listed
from streaming_ext.text.tokenizer.engine import Engine, audit_sample
from streaming_ext.text.tokenizer.token_stream import check_ids, rows_to_audit, stream_of
from streaming_ext.text.tokenizer.tokenizer import Tokenizer

_AUDITED = 2**11  # bytes of text, of which one is compared with the reference
_IS_HOLDOUT = {"train": False, "holdout": True}


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """Some tokenized documents of a unit, in their order.

    Attributes:
        num_rows: rows that were read for them, of each piece of the unit: (pieces,).
        pieces: number of the piece that each is of: (documents,).
        rows: their rows in the piece: (documents,).
        lengths: their tokens, the end-of-text id with them: (documents,).
        stream: their ids, an end-of-text id behind each: (tokens,).
        in_holdout: which of them are held out: (documents,).
    """

    num_rows: Ints
    pieces: Ints
    rows: Ints
    lengths: Ints
    stream: npt.NDArray[Any]
    in_holdout: npt.NDArray[np.bool_]

    def of_split(self, split: str) -> npt.NDArray[np.bool_]:
        """Which of them are in a split."""
        chosen: npt.NDArray[np.bool_] = self.in_holdout == _IS_HOLDOUT[split]
        return chosen

    def stream_of_split(self, split: str) -> npt.NDArray[Any]:
        """The ids of those that are."""
        chosen = self.of_split(split)
        return self.stream if chosen.all() else self.stream[np.repeat(chosen, self.lengths)]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitRecord:
    """What was found in a unit.

    Attributes:
        rows: of each of its pieces.
        tokens: of each split, end-of-text ids with them.
        documents: of each split.
        hashes: XXH3-128 of the tokens of each split.
    """

    rows: tuple[int, ...]
    tokens: Mapping[str, int] = field(default_factory=dict)
    documents: Mapping[str, int] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "UnitRecord":
        """Out of such values; `KeyError` or `TypeError` where they are others."""
        return cls(
            rows=tuple(told["rows"]),
            tokens=dict(told["tokens"]),
            documents=dict(told["documents"]),
            hashes=dict(told["hashes"]),
        )


class UnitReader:
    """Reads units; any process and thread may."""

    def __init__(self, spec: DatasetSpec, engines: Engines, scratch: Path) -> None:
        """Take over the settings.

        Args:
            spec: what decides the tokens.
            engines: that tokenize.
            scratch: where bytes of remote files lie until they are tokenized.
        """
        self.spec = spec
        self._engines = engines
        self._scratch = scratch
        self._options = spec.read_options

    def write(self, unit: Unit, files: Mapping[str, IO[bytes]], *, audit: bool) -> UnitRecord:
        """Write the tokens of each split into its file, and tell what there was.

        Args:
            unit: of text.
            files: one a split that is wanted.
            audit: whether a sample is compared with the reference.

        Raises:
            SourceError: a file is damaged or changed; names it.
            StorageError: a server refuses, or does not answer.
            TokenizerError, EngineMismatchError: the tokens cannot be trusted.
        """
        rows = np.zeros(len(unit.pieces), np.int64)
        tokens, documents = dict.fromkeys(files, 0), dict.fromkeys(files, 0)
        digests = {split: xxhash.xxh3_128() for split in files}
        for some in self.documents(unit, audit=audit):
            rows += some.num_rows
            for split, file in files.items():
                stream = some.stream_of_split(split)
                file.write(stream.data)
                digests[split].update(stream.data)
                tokens[split] += len(stream)
                documents[split] += int(some.of_split(split).sum())
        hashes = {split: digest.hexdigest() for split, digest in digests.items()}
        return UnitRecord(
            rows=tuple(rows.tolist()), tokens=tokens, documents=documents, hashes=hashes
        )

    def documents(self, unit: Unit, *, audit: bool = False) -> Iterator[Documents]:
        """The tokenized documents of a unit, many at once; see `write`."""
        waiting: list[tuple[int, DocumentBatch]] = []
        held = 0  # bytes of text that wait
        for number, piece in enumerate(unit.pieces):
            with self._here(piece) as path:
                reading = format_of(piece.source.url, self._options).read(
                    path, self._options, name=piece.source.url, span=piece.span
                )
                for batch in reading:
                    waiting.append((number, batch))
                    held += batch.texts.nbytes
                    del batch  # before the next is read: one may be large
                    if held >= BATCH_BYTES:
                        yield self._tokenized(unit, waiting, audit=audit)
                        waiting, held = [], 0
        if waiting:
            yield self._tokenized(unit, waiting, audit=audit)

    def _tokenized(
        self, unit: Unit, batches: Sequence[tuple[int, DocumentBatch]], *, audit: bool
    ) -> Documents:
        spec = self.spec
        texts = pa.concat_arrays([batch.texts for _, batch in batches])
        rows = np.concatenate([batch.rows for _, batch in batches])
        pieces = np.repeat(
            [number for number, _ in batches], [len(batch.texts) for _, batch in batches]
        )
        num_rows = np.zeros(len(unit.pieces), np.int64)
        for number, batch in batches:
            num_rows[number] += batch.num_rows

        def place(document: int) -> tuple[str, str]:
            piece = unit.pieces[int(pieces[document])]
            origin = "" if piece.span is None else f" from byte {piece.span[0]} on"
            return piece.source.url, f"row {rows[document]}{origin}"

        hashes = None
        if audit or spec.holdout_fraction:
            hashes = document_hashes(texts, seed=spec.holdout_seed)

        def encode(tokenizer: Tokenizer, engine: Engine) -> Documents:
            try:
                encoded = engine.encode(texts)
                if audit and hashes is not None:
                    chosen = rows_to_audit(hashes, texts, num_bytes=texts.nbytes // _AUDITED)
                    audit_sample(tokenizer, texts, encoded, chosen)
            except (EngineMismatchError, SourceError) as error:
                raise type(error)(f"{unit.name}: {error}") from error
            check_ids(encoded, tokenizer, place=place, where=unit.name)
            # lengths: (documents that were read,)
            lengths = np.diff(encoded.offsets)
            kept = lengths > 0
            for dropped in spec.filters.by_tokens(lengths).values():
                kept &= ~dropped
            in_holdout = np.zeros(int(kept.sum()), bool)
            if hashes is not None and spec.holdout_fraction:
                in_holdout = held_out(hashes, fraction=spec.holdout_fraction)[kept]
            return Documents(
                num_rows=num_rows,
                pieces=pieces[kept],
                rows=rows[kept],
                lengths=lengths[kept] + 1,
                in_holdout=in_holdout,
                stream=stream_of(encoded, lengths, kept, spec.dtype, spec.tokenizer.eot_id),
            )

        return self._engines.run(encode)

    @contextlib.contextmanager
    def _here(self, piece: Piece) -> Iterator[Path]:
        """Where the bytes of a piece lie, as long as they are read."""
        source = piece.source
        if source.local_path is not None:
            other = changed(source.url)
            with kept_as_listed(source, source.local_path, changed=other) as path:
                yield path
            return
        # Of its own: another split, or a trace, may fetch the same bytes under another lock.
        self._scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._scratch) as name:
            own = Path(name)
            if piece.span is None:
                path, _ = fetch(source, own, options=self._options)
            else:
                path, _ = fetch_piece(source, own, options=self._options, span=piece.span)
            yield path


def changed(url: str) -> SourceError:
    """What is said of a file that is another one than that which was scanned."""
    return SourceError(
        f"{url}: changed since its tokens were counted. Training that goes on from a state needs "
        "the file as it was: put it back; or start anew, which counts again."
    )
