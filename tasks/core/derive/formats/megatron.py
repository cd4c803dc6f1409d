"""The format of Megatron-LM: ids in `PREFIX.bin`, and an index of documents in `PREFIX.idx`.

There is one pair per split, into which every part writes a range. With `--max-file-size`, each part
has its own pairs, cut between documents. `sequences.json` is for Megatron's option
`--per-dataset-sequences-path`, with prefixes below the root of the export.
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
        """The splits with one pair for all parts: none with `--max-file-size`."""
        return self.totals if self.options.max_file_size is None else {}

    def shared(self) -> Mapping[str, int]:
        """Return one pair per split; none with `--max-file-size`."""
        sizes = {}
        for split, total in self._of_all_parts.items():
            sizes[f"{split}/{_NAME}.bin"] = total.tokens * self.dtype.itemsize
            sizes[f"{split}/{_NAME}.idx"] = _starts(total.documents, total.documents)[2] + 8
        return sizes

    def write(
        self, position: PartPosition, documents: Iterable[DocumentBlock], out: ExportFiles
    ) -> None:
        """Write a part's ranges of the pair, or its own pairs."""
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
        """Write the heads of the indexes, and the number of sequences of each pair."""
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
    """Return the byte positions of document `number`'s length, offset and number in an index."""
    offsets = _HEAD + 4 * documents
    return _HEAD + 4 * number, offsets + 8 * number, offsets + 8 * (documents + number)


def _head(dtype: Dtype, documents: int) -> bytes:
    kind = _CODES[dtype.name]
    return struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, kind, documents, documents + 1)


def _index(lengths: Ints, documents: int, tokens: int, itemsize: int) -> list[Ints]:
    """Return the lengths of documents, their offsets in bytes, and their numbers.

    Args:
        lengths: the tokens of each document, (documents,).
        documents: the number of earlier documents.
        tokens: the number of earlier tokens.
        itemsize: the bytes of an id.
    """
    offsets = (np.cumsum(lengths) - lengths + tokens) * itemsize
    numbers = documents + np.arange(len(lengths))
    return [lengths.astype("<i4"), offsets.astype("<i8"), numbers.astype("<i8")]
