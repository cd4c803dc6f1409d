"""llm.c's `.bin` shards, and modded-nanogpt's, which are the same with more demands.

A header of 256 int32: a magic number, a version, the number of ids; then the ids. End of text
comes before each document, not after it. Files are cut at a fixed number of ids, as these
trainers' own scripts cut them: a document may continue in the next file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import Split
from tasks.core.derive.export_files import HashedOut
from tasks.core.derive.export_format import ExportFormat
from tasks.core.derive.export_records import Made
from tasks.core.derive.formats.flat import FlatFiles
from tasks.core.derive.formats.nanogpt import NanogptFormat
from tasks.core.reading.documents import Documents, Ids

_HEAD = 256 * 4
_DEFAULT_TOKENS = 10**8  # per file, as in `fineweb.py` of both trainers
_MOST_TOKENS = 2**31 - 1  # the header counts them in an int32
_MAGIC = {"uint16": (20240520, 1), "uint32": (20240801, 7)}
# Their scripts take the first shard for validation: train begins with number 1.
_NAMES: dict[Split, tuple[str, int]] = {"train": ("train", 1), "holdout": ("val", 0)}
_GPT2_EOT = 50256


class LlmcFormat(NanogptFormat):
    """A stream of ids, cut into files with a header."""

    name = "llmc"
    prefix = "text"
    takes = ("max_file_size",)

    def files(self, split: Split) -> FlatFiles:
        """The files of a split."""
        name, first = _NAMES[split]
        dtype, size = np.dtype(self.spec.dtype).newbyteorder("<"), self.options.max_file_size
        return FlatFiles(
            path=lambda number: f"{self.prefix}_{name}_{first + number:06d}.bin",
            dtype=dtype,
            total=self.totals[split].tokens,
            each=_DEFAULT_TOKENS if size is None else max((size - _HEAD) // dtype.itemsize, 1),
            head=_HEAD,
        )

    def stream(self, documents: Iterable[Documents]) -> Iterator[Ids]:
        """The ids, with the end of text before each document."""
        for block in documents:
            yield np.array([self.spec.tokenizer.eot_id], block.stream.dtype)
            yield block.stream[:-1]

    def require_possible(self) -> None:
        """Refuse files whose header cannot count their ids."""
        ExportFormat.require_possible(self)
        item, size = np.dtype(self.spec.dtype).itemsize, self.options.max_file_size
        least, most = _HEAD + item, _HEAD + _MOST_TOKENS * item
        if size is not None and not least <= size <= most:
            raise UsageError(
                f"--max-file-size {size:,} bytes: the header of {self.name} counts ids up to "
                f"2^31 - 1, so a file has from {least:,} to {most:,} bytes here."
            )

    def finish(self, made: Mapping[Split, Sequence[Made]], out: HashedOut) -> None:
        """Write the headers."""
        for split in self.totals:
            for path, ids in self.files(split).counts.items():
                head = np.zeros(256, "<i4")
                head[:3] = (*_MAGIC[self.spec.dtype], ids)
                out.put_span(path, 0, head)


class ModdedNanogptFormat(LlmcFormat):
    """Files that modded-nanogpt finds and reads: at least two to train from, and GPT-2's ids."""

    name = "modded-nanogpt"
    prefix = "fineweb"

    def files(self, split: Split) -> FlatFiles:
        """At least two files of `train`."""
        files = super().files(split)
        if split == "train":
            each = min(files.each or 1, max(-(-files.total // 2), 1))
            files = replace(files, each=each)
        return files

    def require_possible(self) -> None:
        """Refuse ids that it would not read as GPT-2's."""
        super().require_possible()
        self.require_uint16()
        if (found := self.spec.tokenizer.eot_id) != _GPT2_EOT:
            raise UsageError(
                f"modded-nanogpt finds documents by the id {_GPT2_EOT}, GPT-2's end of text; this "
                f"dataset's is {found}. Shard with --tokenizer gpt2, or export to llmc."
            )
