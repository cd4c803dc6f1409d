"""The formats of nanoGPT, llm.c and modded-nanogpt: a split is one stream of ids, cut into files.

nanoGPT has `train.bin` and `val.bin` with bare uint16 ids, and an end-of-text id after each
document. llm.c has files with a header of 256 int32 (a magic number, a version, the number of ids),
and an end-of-text id before each document. As in the scripts of these trainers, files have a fixed
number of ids, so a document may continue in the next file. modded-nanogpt reads the same files,
but has more requirements.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from operator import itemgetter

import numpy as np

from streaming_ext.base.arrays import ceil_div
from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import Split
from tasks.core.derive.export_format import ExportFiles, ExportFormat, PartPosition
from tasks.core.reading.documents import DocumentBlock, Ids

_NAMES: dict[Split, str] = {"train": "train.bin", "holdout": "val.bin"}
_HEAD = 256 * 4
_DEFAULT_TOKENS = 10**8  # per file, as in `fineweb.py` of both trainers
_MOST_TOKENS = 2**31 - 1  # the header has an int32 for the number
_MAGIC = {"uint16": (20240520, 1), "uint32": (20240801, 7)}
# The scripts use shard 0 for validation, so train begins with number 1.
_LLMC_NAMES: dict[Split, tuple[str, int]] = {"train": ("train", 1), "holdout": ("val", 0)}
_GPT2_EOT = 50256


class NanogptExport(ExportFormat):
    """One file of ids per split, into which all parts write."""

    name = "nanogpt"
    has_uint16 = True

    def path(self, split: Split, number: int) -> str:
        """Return the path of a file of a split, by its number from 0."""
        return _NAMES[split]

    def each(self, split: Split) -> int:
        """Return the most ids per file of a split."""
        return self.totals[split].tokens

    def head(self, ids: int) -> bytes:
        """Return the header of a file with this number of ids."""
        return b""

    def stream(self, documents: Iterable[DocumentBlock]) -> Iterator[Ids]:
        """Yield the ids to write for some documents."""
        return (block.stream for block in documents)

    def shared(self) -> Mapping[str, int]:
        """Return all files: a part may end inside a file."""
        sizes = {}
        for split, total in self.totals.items():
            each = self.each(split)
            for number, first in enumerate(range(0, total.tokens, each)):
                ids = min(each, total.tokens - first)
                sizes[self.path(split, number)] = len(self.head(ids)) + ids * self.dtype.itemsize
        return sizes

    def write(
        self, position: PartPosition, documents: Iterable[DocumentBlock], out: ExportFiles
    ) -> None:
        """Write a part's range of ids.

        With 3 ids per file, a part that holds the ids 2 to 6 of the split writes:
        file 0: . . 2    file 1: 3 4 5    file 2: 6 . .
        """
        split, each = position.split, self.each(position.split)
        files = groupby(_cut(self.stream(documents), position.before.tokens, each), itemgetter(0))
        for number, cuts in files:
            _, first, ids = next(cuts)
            head = self.head(min(each, self.totals[split].tokens - number * each))
            start = len(head) + first * self.dtype.itemsize if first else 0
            with out.span(self.path(split, number), start) as sink:
                if not first:  # the part with the first id writes the header
                    sink.write(head)
                for own in chain([ids], map(itemgetter(2), cuts)):
                    sink.write(np.ascontiguousarray(own, self.dtype))


def _cut(stream: Iterable[Ids], at: int, each: int) -> Iterator[tuple[int, int, Ids]]:
    """Cut ids into files; yield the number of a file, a position in it, and the ids from there.

    Args:
        stream: the ids.
        at: the position of the first id in the split.
        each: the most ids per file.
    """
    for ids in stream:
        while len(ids):
            number, first = divmod(at, each)
            own, ids = ids[: each - first], ids[each - first :]  # noqa: PLW2901
            yield number, first, own
            at += len(own)


class LlmcExport(NanogptExport):
    """A stream of ids, cut into files with a header."""

    name = "llmc"
    has_uint16 = False
    prefix = "text"
    takes = ("max_file_size",)

    def path(self, split: Split, number: int) -> str:
        """Return the path of a file of a split, by its number from 0."""
        name, first = _LLMC_NAMES[split]
        return f"{self.prefix}_{name}_{first + number:06d}.bin"

    def each(self, split: Split) -> int:
        """Return the ids that `--max-file-size` allows."""
        size = self.options.max_file_size
        return _DEFAULT_TOKENS if size is None else max((size - _HEAD) // self.dtype.itemsize, 1)

    def head(self, ids: int) -> bytes:
        """Return the header: a magic number, a version, the number of ids, and zeros."""
        head = np.zeros(_HEAD // 4, "<i4")
        head[:3] = (*_MAGIC[self.dtype.name], ids)
        return head.tobytes()

    def stream(self, documents: Iterable[DocumentBlock]) -> Iterator[Ids]:
        """Yield the ids, with the end-of-text id before each document."""
        for block in documents:
            yield np.array([self.spec.tokenizer.eot_id], block.stream.dtype)
            yield block.stream[:-1]

    @property
    def file_sizes(self) -> tuple[int, int]:
        """The sizes of a file with one id, and with as many as the header can count."""
        item = self.dtype.itemsize
        return _HEAD + item, _HEAD + _MOST_TOKENS * item


class ModdedNanogptExport(LlmcExport):
    """Files for modded-nanogpt, which needs GPT-2's ids and at least two files of `train`."""

    name = "modded-nanogpt"
    has_uint16 = True
    prefix = "fineweb"

    def each(self, split: Split) -> int:
        """Return few enough ids for two files of `train`."""
        each = super().each(split)
        return min(each, ceil_div(self.totals[split].tokens, 2)) if split == "train" else each

    def require_possible(self) -> None:
        """Refuse ids that do not end documents as GPT-2's do."""
        super().require_possible()
        if (found := self.spec.tokenizer.eot_id) != _GPT2_EOT:
            raise UsageError(
                f"modded-nanogpt finds documents by the id {_GPT2_EOT}, GPT-2's end of text; this "
                f"dataset's is {found}. Shard with --tokenizer gpt2, or export to llmc."
            )
