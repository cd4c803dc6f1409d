"""Megatron-LM's `PREFIX.bin` and `PREFIX.idx`: ids, and where each document begins.

One pair per split, into whose files each part writes its own range; with `--max-file-size` pairs
of each part's own, cut between documents. `sequences.json` holds what
`--per-dataset-sequences-path` takes, of prefixes below the export's root.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.format.layout import Split
from tasks.core.derive.export_files import HashedOut
from tasks.core.derive.export_format import ExportFormat, PartPosition
from tasks.core.derive.export_records import Made
from tasks.core.derive.formats.flat import Dtype, FlatFiles, StreamWriter, whole_documents
from tasks.core.reading.documents import Documents

_MOST_UINT16 = 65_500  # ids, as in Megatron's own `optimal_dtype`
_CODES = {"uint16": 8, "int32": 4}
_NAME = "text_document"
_HEAD = 34


class MegatronFormat(ExportFormat):
    """Pairs of `.bin` and `.idx`."""

    name = "megatron"
    takes = ("max_file_size",)

    @property
    def dtype(self) -> Dtype:
        """Of an id."""
        return np.dtype("<u2" if self.spec.tokenizer.vocab_size < _MOST_UINT16 else "<i4")

    def shared(self) -> Mapping[str, int]:
        """One pair per split, unless files have a bound."""
        sizes = {}
        for split, total in self.totals.items() if self.options.max_file_size is None else ():
            sizes[f"{split}/{_NAME}.bin"] = total.tokens * self.dtype.itemsize
            sizes[f"{split}/{_NAME}.idx"] = _columns(total.documents)[3] + 8
        return sizes

    def write(
        self, position: PartPosition, documents: Iterable[Documents], out: HashedOut
    ) -> Sequence[Made]:
        """Write a part's ranges of the pair, or pairs of its own."""
        if self.options.max_file_size is not None:
            return self._write_pairs(position, documents, out)
        total, before = self.totals[position.split], position.before
        count, tokens, prefix = before.documents, before.tokens, f"{position.split}/{_NAME}"
        files = FlatFiles(path=lambda number: f"{prefix}.bin", dtype=self.dtype, total=total.tokens)
        with ExitStack() as stack:
            ids = stack.enter_context(StreamWriter(out, files, tokens))
            columns = [
                stack.enter_context(out.span(f"{prefix}.idx", start + width * count))
                for start, width in zip(_columns(total.documents), (4, 8, 8), strict=False)
            ]
            for block in documents:
                ids.write(block.stream)
                values = _index(block.lengths, count, tokens, self.dtype.itemsize)
                for column, of_documents in zip(columns, values, strict=True):
                    column.write(of_documents)
                count, tokens = count + len(block.ends), tokens + len(block.stream)
        return ()

    def _write_pairs(
        self, position: PartPosition, documents: Iterable[Documents], out: HashedOut
    ) -> list[Made]:
        most = max((self.options.max_file_size or 0) // self.dtype.itemsize, 1)
        made = []
        for number, blocks in groupby(whole_documents(documents, most), itemgetter(0)):
            prefix = f"{position.split}/{position.part:05}-{number:03}_{_NAME}"
            of_blocks = []
            with out.file(f"{prefix}.bin") as sink:
                for _, ids, lengths in blocks:
                    sink.write(np.ascontiguousarray(ids, self.dtype))
                    of_blocks.append(lengths)
            lengths = np.concatenate(of_blocks)
            with out.file(f"{prefix}.idx") as index:
                index.write(_head(self.dtype, len(lengths)))
                for column in _index(lengths, 0, 0, self.dtype.itemsize):
                    index.write(column)
                index.write(np.array([len(lengths)], "<i8"))
            made.append(Made(path=f"{prefix}.bin", documents=len(lengths), size=sink.size))
        return made

    def finish(self, made: Mapping[Split, Sequence[Made]], out: HashedOut) -> None:
        """Write the heads of the indexes, and how many sequences each pair has."""
        documents = {file.path: file.documents for files in made.values() for file in files}
        for split, total in self.totals.items() if self.options.max_file_size is None else ():
            path = f"{split}/{_NAME}.idx"
            out.put_span(path, 0, _head(self.dtype, total.documents))
            last = np.array([total.documents], "<i8")
            out.put_span(path, _columns(total.documents)[3], last)
            documents[f"{split}/{_NAME}.bin"] = total.documents
        counts = {
            path.removesuffix(".bin"): [count, count + 1] for path, count in documents.items()
        }
        out.put("sequences.json", (json.dumps(counts, indent=1, sort_keys=True) + "\n").encode())


def _columns(documents: int) -> tuple[int, int, int, int]:
    """Where lengths, offsets and numbers of documents begin in an index, and the last number."""
    lengths, offsets = _HEAD, _HEAD + 4 * documents
    numbers = offsets + 8 * documents
    return lengths, offsets, numbers, numbers + 8 * documents


def _head(dtype: Dtype, documents: int) -> bytes:
    counts = np.array([documents, documents + 1], "<u8").tobytes()
    version = np.array([1], "<u8").tobytes()
    return b"MMIDIDX\0\0" + version + bytes([_CODES[dtype.name]]) + counts


def _index(lengths: Ints, documents: int, tokens: int, itemsize: int) -> list[Ints]:
    """Lengths, offsets in bytes and numbers of documents.

    Args:
        lengths: tokens of each, (documents,).
        documents: before them.
        tokens: before them.
        itemsize: bytes of an id.
    """
    offsets = (np.cumsum(lengths) - lengths + tokens) * itemsize
    numbers = documents + np.arange(len(lengths))
    return [lengths.astype("<i4"), offsets.astype("<i8"), numbers.astype("<i8")]
