"""nanoGPT, llm.c and modded-nanogpt: each split is one stream of ids in files of all parts.

nanoGPT has `train.bin` and `val.bin` of bare uint16 ids, end of text after each document. llm.c
has files with a header of 256 int32 (a magic number, a version, the number of ids) before the ids.
End of text comes before each document there, not after it. Files are cut at a fixed number of ids,
as the scripts of these trainers cut them: a document may continue in the next file. modded-nanogpt
reads the same files with more demands.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import Split
from tasks.core.derive.export_format import ExportFiles, ExportFormat, PartPosition
from tasks.core.derive.export_records import Made
from tasks.core.derive.formats.flat import Dtype, StreamWriter
from tasks.core.reading.documents import Documents, Ids

_NAMES: dict[Split, str] = {"train": "train.bin", "holdout": "val.bin"}
_HEAD = 256 * 4
_DEFAULT_TOKENS = 10**8  # per file, as in `fineweb.py` of both trainers
_MOST_TOKENS = 2**31 - 1  # the header counts them in an int32
_MAGIC = {"uint16": (20240520, 1), "uint32": (20240801, 7)}
# Their scripts take the first shard for validation: train begins with number 1.
_LLMC_NAMES: dict[Split, tuple[str, int]] = {"train": ("train", 1), "holdout": ("val", 0)}
_GPT2_EOT = 50256


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatFiles:
    """A split's ids back to back, in one file or cut into several of `each` ids.

    3 ids per file, a part that holds the ids 2 to 6 of the split:
    file 0: . . 2    file 1: 3 4 5    file 2: 6 . .

    Attributes:
        path: of the file of a number, from 0.
        dtype: of an id.
        total: ids of the split.
        each: ids of a file, at most.
        head: bytes before the ids.
    """

    path: Callable[[int], str]
    dtype: Dtype
    total: int
    each: int
    head: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Ids of each file, by its path."""
        return {
            self.path(number): min(self.each, self.total - first)
            for number, first in enumerate(range(0, self.total, self.each))
        }

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each file in bytes, by its path."""
        return {path: self.head + ids * self.dtype.itemsize for path, ids in self.counts.items()}

    def locate(self, position: int) -> tuple[str, int, bytes, int]:
        """See `Layout`."""
        number, first = divmod(position, self.each)
        return self.path(number), self.head + first * self.dtype.itemsize, b"", self.each - first


class NanogptFormat(ExportFormat):
    """Each split is one stream of ids in files that all parts write into."""

    name = "nanogpt"
    has_uint16 = True

    def files(self, split: Split) -> FlatFiles:
        """The files of a split."""
        total = self.totals[split].tokens
        return FlatFiles(
            path=lambda number: _NAMES[split], dtype=np.dtype("<u2"), total=total, each=total
        )

    def stream(self, documents: Iterable[Documents]) -> Iterator[Ids]:
        """What is written of some documents."""
        return (block.stream for block in documents)

    def shared(self) -> Mapping[str, int]:
        """All files: a part may end within one."""
        return {
            path: size for split in self.totals for path, size in self.files(split).sizes.items()
        }

    def write(
        self, position: PartPosition, documents: Iterable[Documents], out: ExportFiles
    ) -> Sequence[Made]:
        """Write a part's range of ids."""
        files = self.files(position.split)
        with StreamWriter(out, files, position.before.tokens) as writer:
            for ids in self.stream(documents):
                writer.write(ids)
        return ()


class LlmcFormat(NanogptFormat):
    """A stream of ids, cut into files with a header."""

    name = "llmc"
    has_uint16 = False
    prefix = "text"
    takes = ("max_file_size",)

    def files(self, split: Split) -> FlatFiles:
        """The files of a split."""
        name, first = _LLMC_NAMES[split]
        size = self.options.max_file_size
        return FlatFiles(
            path=lambda number: f"{self.prefix}_{name}_{first + number:06d}.bin",
            dtype=self.dtype,
            total=self.totals[split].tokens,
            each=_DEFAULT_TOKENS if size is None else max((size - _HEAD) // self.dtype.itemsize, 1),
            head=_HEAD,
        )

    def stream(self, documents: Iterable[Documents]) -> Iterator[Ids]:
        """The ids, with the end of text before each document."""
        for block in documents:
            yield np.array([self.spec.tokenizer.eot_id], block.stream.dtype)
            yield block.stream[:-1]

    @property
    def file_sizes(self) -> tuple[int, int]:
        """At least one id, and as many as the header can count."""
        item = self.dtype.itemsize
        return _HEAD + item, _HEAD + _MOST_TOKENS * item

    def finish(self, made: Mapping[Split, Sequence[Made]], out: ExportFiles) -> None:
        """Write the headers."""
        for split in self.totals:
            for path, ids in self.files(split).counts.items():
                head = np.zeros(256, "<i4")
                head[:3] = (*_MAGIC[self.spec.dtype], ids)
                out.put(path, head, start=0)


class ModdedNanogptFormat(LlmcFormat):
    """Files that modded-nanogpt finds and reads: at least two to train from, and GPT-2's ids."""

    name = "modded-nanogpt"
    has_uint16 = True
    prefix = "fineweb"

    def files(self, split: Split) -> FlatFiles:
        """At least two files of `train`."""
        files = super().files(split)
        if split == "train":
            files = replace(files, each=min(files.each, -(-files.total // 2)))
        return files

    def require_possible(self) -> None:
        """Refuse ids that it would not read as GPT-2's."""
        super().require_possible()
        if (found := self.spec.tokenizer.eot_id) != _GPT2_EOT:
            raise UsageError(
                f"modded-nanogpt finds documents by the id {_GPT2_EOT}, GPT-2's end of text; this "
                f"dataset's is {found}. Shard with --tokenizer gpt2, or export to llmc."
            )
