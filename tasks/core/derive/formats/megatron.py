"""Megatron-LM's `PREFIX.bin` and `PREFIX.idx`: ids, and where each document begins.

One pair per split, in which every part writes a range of its own; with `--max-file-size` pairs
of each part's own, cut between documents. `sequences.json` holds what
`--per-dataset-sequences-path` takes, of prefixes below the export's root.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.format.layout import Split
from tasks.core.derive.export_format import ExportFiles, ExportFormat, Extents, Made, PartPosition
from tasks.core.derive.formats.flat import Dtype, cut_between_documents
from tasks.core.reading.documents import DocumentBlock

_MOST_UINT16 = 65_500  # ids, as in Megatron's own `optimal_dtype`
_CODES = {"uint16": 8, "int32": 4}
_NAME = "text_document"
_HEAD = 34


class MegatronExport(ExportFormat):
    """Pairs of `.bin` and `.idx`."""

    name = "megatron"
    takes = ("max_file_size",)

    @property
    def dtype(self) -> Dtype:
        """The type of an id."""
        return np.dtype("<u2" if self.spec.tokenizer.vocab_size < _MOST_UINT16 else "<i4")

    @property
    def _of_all_parts(self) -> Extents:
        """The splits whose pair all parts write into: none if files have a bound."""
        return self.totals if self.options.max_file_size is None else {}

    def shared(self) -> Mapping[str, int]:
        """Return one pair per split, unless files have a bound."""
        sizes = {}
        for split, total in self._of_all_parts.items():
            sizes[f"{split}/{_NAME}.bin"] = total.tokens * self.dtype.itemsize
            sizes[f"{split}/{_NAME}.idx"] = _starts(total.documents, total.documents)[2] + 8
        return sizes

    def write(
        self, position: PartPosition, documents: Iterable[DocumentBlock], out: ExportFiles
    ) -> None:
        """Write a part's ranges of the pair, or pairs of its own."""
        if self.options.max_file_size is not None:
            self._write_pairs(position, documents, out, self.options.max_file_size)
            return
        prefix, itemsize = f"{position.split}/{_NAME}", self.dtype.itemsize
        count, tokens = position.before.documents, position.before.tokens
        starts = _starts(self.totals[position.split].documents, count)
        spans = [(".bin", tokens * itemsize), *((".idx", start) for start in starts)]
        with ExitStack() as stack:
            sinks = [stack.enter_context(out.span(prefix + name, start)) for name, start in spans]
            for block in documents:
                ids = np.ascontiguousarray(block.stream, self.dtype)
                values = ids, *_index(block.lengths, count, tokens, itemsize)
                for sink, data in zip(sinks, values, strict=True):
                    sink.write(data)
                count, tokens = count + len(block.ends), tokens + len(block.stream)

    def _write_pairs(
        self,
        position: PartPosition,
        documents: Iterable[DocumentBlock],
        out: ExportFiles,
        size: int,
    ) -> None:
        most = max(size // self.dtype.itemsize, 1)
        for number, blocks in cut_between_documents(documents, most):
            prefix = f"{position.split}/{position.part:05}-{number:03}_{_NAME}"
            of_blocks = []
            with out.file(f"{prefix}.bin") as sink:
                for _, ids, lengths in blocks:
                    sink.write(np.ascontiguousarray(ids, self.dtype))
                    of_blocks.append(lengths)
            lengths = np.concatenate(of_blocks)
            columns = [column.tobytes() for column in _index(lengths, 0, 0, self.dtype.itemsize)]
            last = len(lengths).to_bytes(8, "little")
            out.put(f"{prefix}.idx", b"".join([_head(self.dtype, len(lengths)), *columns, last]))
            out.made.append(Made(path=f"{prefix}.bin", documents=len(lengths), size=sink.size))

    def finish(self, made: Mapping[Split, Sequence[Made]], out: ExportFiles) -> None:
        """Write the heads of the indexes, and how many sequences each pair has."""
        documents = {file.path: file.documents for files in made.values() for file in files}
        for split, total in self._of_all_parts.items():
            path = f"{split}/{_NAME}.idx"
            out.put(path, _head(self.dtype, total.documents), start=0)
            last = _starts(total.documents, total.documents)[2]
            out.put(path, total.documents.to_bytes(8, "little"), start=last)
            documents[f"{split}/{_NAME}.bin"] = total.documents
        counts = {
            path.removesuffix(".bin"): [count, count + 1] for path, count in documents.items()
        }
        out.put("sequences.json", (json.dumps(counts, indent=1, sort_keys=True) + "\n").encode())


def _starts(documents: int, number: int) -> tuple[int, int, int]:
    """Positions of the length, offset and number of a document in an index of `documents`."""
    offsets = _HEAD + 4 * documents
    return _HEAD + 4 * number, offsets + 8 * number, offsets + 8 * (documents + number)


def _head(dtype: Dtype, documents: int) -> bytes:
    kind = _CODES[dtype.name]
    return struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, kind, documents, documents + 1)


def _index(lengths: Ints, documents: int, tokens: int, itemsize: int) -> list[Ints]:
    """Lengths, offsets in bytes and numbers of documents.

    Args:
        lengths: the tokens of each, (documents,).
        documents: the number of documents before them.
        tokens: the number of tokens before them.
        itemsize: the bytes of an id.
    """
    offsets = (np.cumsum(lengths) - lengths + tokens) * itemsize
    numbers = documents + np.arange(len(lengths))
    return [lengths.astype("<i4"), offsets.astype("<i8"), numbers.astype("<i8")]
