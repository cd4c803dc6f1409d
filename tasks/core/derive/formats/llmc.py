"""llm.c's `.bin` shards, and modded-nanogpt's, which are the same with more demands.

A header of 256 int32: a magic number, a version, the number of ids; then the ids. End of text
stands before each document, not behind it. The files are cut at so many ids, as these trainers'
own scripts cut them: documents go on in the next file.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import Split
from streaming_ext.format.spec import DatasetSpec
from tasks.core.derive.export_format import ExportOptions, Extent, Extents, Made, Out, Place
from tasks.core.derive.formats.asked import require_only, require_uint16
from tasks.core.derive.formats.flat import FlatFiles, FlatWriter, sizes_of
from tasks.core.reading.documents import Documents

_HEAD = 256 * 4
_USUAL_TOKENS = 10**8  # of a file, as `fineweb.py` of both trainers has it
_MOST_TOKENS = 2**31 - 1  # the header counts them in an int32
_MAGIC = {"uint16": (20240520, 1), "uint32": (20240801, 7)}
# Their scripts take the first shard for validation: train goes on with number 1.
_NAMES: dict[Split, tuple[str, int]] = {"train": ("train", 1), "holdout": ("val", 0)}
_GPT2_EOT = 50256


class LlmcFormat:
    """See `ExportFormat`."""

    name = "llmc"
    prefix = "text"

    tells_origins = False

    def __init__(self, spec: DatasetSpec, options: ExportOptions, totals: Extents) -> None:
        self._spec, self._options = spec, options
        self._dtype = np.dtype(spec.dtype).newbyteorder("<")
        self._files = {
            split: FlatFiles(
                path=_paths(split, self.prefix),
                dtype=self._dtype,
                total=total.tokens,
                each=self.tokens_a_file(split, total.tokens),
                head=_HEAD,
            )
            for split, total in totals.items()
        }

    def tokens_a_file(self, split: Split, total: int) -> int:
        """Ids of a full file."""
        size = self._options.max_file_size
        return _USUAL_TOKENS if size is None else max((size - _HEAD) // self._dtype.itemsize, 1)

    def require_possible(self) -> None:
        """Refuse files whose header cannot count their ids."""
        require_only(self.name, self._options, "max_file_size")
        size = self._options.max_file_size
        if size is None:
            return
        item, least = self._dtype.itemsize, _HEAD + self._dtype.itemsize
        most = _HEAD + _MOST_TOKENS * item
        if not least <= size <= most:
            raise UsageError(
                f"--max-file-size {size:,} bytes: the header of {self.name} counts ids up to "
                f"2^31 - 1, so a file has from {least:,} to {most:,} bytes here."
            )

    def files_of(self, own: Extent) -> int:
        """None of a part's own."""
        return 0

    def shared(self) -> Mapping[str, int]:
        """All files: a part may end within one."""
        return sizes_of(self._files.values())

    def open(self, place: Place, out: Out) -> "_Writer":
        """Begin a part's range."""
        flat = FlatWriter(out, self._files[place.split], place.before.tokens)
        return _Writer(flat, self._spec.tokenizer.eot_id)

    def finish(self, made: Mapping[Split, Sequence[Made]], out: Out) -> None:
        """Write the headers."""
        for files in self._files.values():
            for number in range(files.count):
                head = np.zeros(256, "<i4")
                head[:3] = (*_MAGIC[self._spec.dtype], files.held(number))
                sink = out.piece(files.path(number), 0)
                sink.write(head)
                sink.close()


class ModdedNanogptFormat(LlmcFormat):
    """Files that modded-nanogpt finds and reads: at least two to train from, and GPT-2's ids."""

    name = "modded-nanogpt"
    prefix = "fineweb"

    def tokens_a_file(self, split: Split, total: int) -> int:
        """So that there are at least two files of `train`."""
        full = super().tokens_a_file(split, total)
        return min(full, max(-(-total // 2), 1)) if split == "train" else full

    def require_possible(self) -> None:
        """Refuse ids that it does not know for GPT-2's."""
        super().require_possible()
        require_uint16(self.name, self._spec)
        if (found := self._spec.tokenizer.eot_id) != _GPT2_EOT:
            raise UsageError(
                f"modded-nanogpt finds documents by the id {_GPT2_EOT}, GPT-2's end of text; this "
                f"dataset's is {found}. Shard with --tokenizer gpt2, or export to llmc."
            )


class _Writer:
    """Puts the end of text before each document."""

    def __init__(self, flat: FlatWriter, eot_id: int) -> None:
        self._flat, self._eot = flat, eot_id

    def add(self, documents: Documents) -> None:
        stream = documents.stream
        self._flat.write(np.array([self._eot], stream.dtype))
        self._flat.write(stream[:-1])

    def finish(self) -> list[Made]:
        self._flat.close()
        return []


def _paths(split: Split, prefix: str) -> Callable[[int], str]:
    name, first = _NAMES[split]
    return lambda number: f"{prefix}_{name}_{first + number:06d}.bin"
