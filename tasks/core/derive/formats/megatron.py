"""Megatron-LM's `PREFIX.bin` and `PREFIX.idx`: ids, and where each document stands among them.

One pair a split, into whose files each part writes its own range; with `--max-file-size` pairs of
each part's own, cut between documents. `sequences.json` holds what
`--per-dataset-sequences-path` takes, of prefixes below the export's root.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.format.layout import SPLITS, Split
from streaming_ext.format.spec import DatasetSpec
from tasks.core.derive.export_format import (
    ExportOptions,
    Extent,
    Extents,
    Made,
    Out,
    Place,
    Sink,
    SplitExporter,
)
from tasks.core.derive.formats.asked import require_only
from tasks.core.derive.formats.flat import FlatFiles, FlatWriter
from tasks.core.derive.whole import WholeFiles
from tasks.core.reading.documents import Documents, Ids

_MOST_UINT16 = 65_500  # ids, as Megatron's own `optimal_dtype` has it
_CODES = {"uint16": 8, "int32": 4}
_NAME = "text_document"


class MegatronFormat:
    """See `ExportFormat`."""

    tells_origins = False

    def __init__(self, spec: DatasetSpec, options: ExportOptions, totals: Extents) -> None:
        narrow = spec.tokenizer.vocab_size < _MOST_UINT16
        self._dtype = np.dtype("<u2" if narrow else "<i4")
        self._options, self._totals = options, totals

    def require_possible(self) -> None:
        """Refuse options that are of no use."""
        require_only("megatron", self._options, "max_file_size")

    def files_of(self, own: Extent) -> int:
        """As many pairs as documents fill, which only the documents tell."""
        return 0

    def shared(self) -> Mapping[str, int]:
        """One pair a split, unless files have a bound."""
        if self._options.max_file_size is not None:
            return {}
        sizes = {}
        for split, total in self._totals.items():
            sizes[_bin(split)] = total.tokens * self._dtype.itemsize
            sizes[_idx(split)] = _index_size(total.documents)
        return sizes

    def open(self, place: Place, out: Out) -> SplitExporter:
        """Begin a part's ranges of the pair, or its own first pair."""
        size = self._options.max_file_size
        if size is not None:
            return _OwnPairs(place, out, self._dtype, max(size // self._dtype.itemsize, 1))
        return _Ranges(place, out, self._dtype, self._totals[place.split])

    def finish(self, made: Mapping[Split, Sequence[Made]], out: Out) -> None:
        """Write the heads of the indexes, and how many sequences each pair has."""
        counts: dict[str, list[int]] = {}
        if self._options.max_file_size is None:
            for split, total in self._totals.items():
                head = out.piece(_idx(split), 0)
                head.write(_head(self._dtype, total.documents))
                head.close()
                last = out.piece(_idx(split), _index_size(total.documents) - 8)
                last.write(np.array([total.documents], "<i8"))
                last.close()
                counts[_bin(split).removesuffix(".bin")] = [total.documents, total.documents + 1]
        for split in SPLITS:
            for file in made.get(split, ()):
                if file.path.endswith(".bin"):
                    prefix = file.path.removesuffix(".bin")
                    counts[prefix] = [file.documents, file.documents + 1]
        listed = out.file("sequences.json")
        listed.write((json.dumps(counts, indent=1, sort_keys=True) + "\n").encode())
        listed.close()


class _Ranges:
    """A part's ranges of the one pair of its split: ids, lengths, offsets, numbers of documents."""

    def __init__(self, place: Place, out: Out, dtype: np.dtype[np.generic], total: Extent) -> None:
        files = FlatFiles(
            path=lambda number: _bin(place.split),
            dtype=dtype,
            total=total.tokens,
            each=max(total.tokens, 1),
        )
        self._flat = FlatWriter(out, files, place.before.tokens)
        self._itemsize = dtype.itemsize
        before, documents = place.before.documents, total.documents
        starts = (
            _HEAD + 4 * before,
            _HEAD + 4 * documents + 8 * before,
            _HEAD + 12 * documents + 8 * before,
        )
        self._sinks = [out.piece(_idx(place.split), start) for start in starts]
        self._documents, self._tokens = before, place.before.tokens

    def add(self, documents: Documents) -> None:
        self._flat.write(documents.stream)
        for sink, values in zip(
            self._sinks,
            _index(documents.lengths, self._documents, self._tokens, self._itemsize),
            strict=True,
        ):
            sink.write(values)
        self._documents += len(documents.ends)
        self._tokens += len(documents.stream)

    def finish(self) -> list[Made]:
        self._flat.close()
        for sink in self._sinks:
            sink.close()
        return []


class _OwnPairs:
    """Pairs of a part's own, each of whole documents."""

    def __init__(
        self, place: Place, out: Out, dtype: np.dtype[np.generic], most_tokens: int
    ) -> None:
        self._place, self._out, self._dtype = place, out, dtype
        self._files = WholeFiles(most_tokens)
        self._lengths: list[Ints] = []
        self._tokens = 0
        self._made: list[Made] = []
        self._bin: Sink | None = None

    def add(self, documents: Documents) -> None:
        for begins, ids, lengths in self._files.cut(documents):
            if begins:
                self._end()
            self._write(ids, lengths)

    def _write(self, ids: Ids, lengths: Ints) -> None:
        if self._bin is None:
            number = len(self._made) // 2  # a pair each
            self._prefix = f"{self._place.split}/{self._place.part:05}-{number:03}_{_NAME}"
            self._bin = self._out.file(f"{self._prefix}.bin")
        self._bin.write(np.ascontiguousarray(ids, self._dtype))
        self._lengths.append(lengths)
        self._tokens += len(ids)

    def _end(self) -> None:
        if self._bin is None:
            return
        self._bin.close()
        lengths = np.concatenate(self._lengths)
        index = self._out.file(f"{self._prefix}.idx")
        index.write(_head(self._dtype, len(lengths)))
        for values in _index(lengths, 0, 0, self._dtype.itemsize):
            index.write(values)
        index.write(np.array([len(lengths)], "<i8"))
        index.close()
        self._made += [
            Made(
                path=f"{self._prefix}.bin",
                documents=len(lengths),
                tokens=self._tokens,
                size=self._tokens * self._dtype.itemsize,
            ),
            Made(path=f"{self._prefix}.idx", size=_index_size(len(lengths))),
        ]
        self._lengths, self._tokens, self._bin = [], 0, None

    def finish(self) -> list[Made]:
        self._end()
        return self._made


_HEAD = 34


def _bin(split: Split) -> str:
    return f"{split}/{_NAME}.bin"


def _idx(split: Split) -> str:
    return f"{split}/{_NAME}.idx"


def _index_size(documents: int) -> int:
    return _HEAD + (4 + 8) * documents + 8 * (documents + 1)


def _head(dtype: np.dtype[np.generic], documents: int) -> bytes:
    counts = np.array([documents, documents + 1], "<u8").tobytes()
    version = np.array([1], "<u8").tobytes()
    return b"MMIDIDX\0\0" + version + bytes([_CODES[dtype.name]]) + counts


def _index(lengths: Ints, documents: int, tokens: int, itemsize: int) -> list[Ints]:
    """Lengths, offsets in bytes and numbers of documents that follow others.

    Args:
        lengths: tokens of each, (documents,).
        documents: before them.
        tokens: before them.
        itemsize: bytes of an id.
    """
    offsets = (np.cumsum(lengths) - lengths + tokens) * itemsize
    numbers = documents + np.arange(len(lengths))
    return [lengths.astype("<i4"), offsets.astype("<i8"), numbers.astype("<i8")]
