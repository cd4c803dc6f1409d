"""nanotron's and datatrove's `.ds`: bare ids, with the ends of documents in `.ds.index`."""

from pathlib import Path

import numpy as np

from streaming_ext.base.errors import SourceError
from streaming_ext.format.shard import token_dtype
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.token_sets.files.ids_of_file import IdsOfFile, raw_ids
from streaming_ext.text.token_sets.files.set_file import SetFile, pin_of
from streaming_ext.text.token_sets.token_set import TokenSetFormat


class NanotronSet(TokenSetFormat):
    """See `TokenSetFormat`."""

    name = "nanotron"
    suffixes = (".ds",)
    is_cut = True
    tells_type = False

    def beside(self, path: Path) -> tuple[Path, ...]:
        """The ends of its documents."""
        return (path.with_name(f"{path.name}.index"),)

    def pin(self, file: SetFile, options: IdOptions) -> str:
        """Of the ends of its documents."""
        return pin_of(file.folder, (f"{file.key}.index",))

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """The ids, and the document ends that must fill the file.

        Raises:
            SourceError: they do not; the index is missing, or another file's.
        """
        dtype = options.dtype or token_dtype(options.vocab_size)
        name, size = file.name, file.size
        beside = file.beside(f"{file.key}.index")
        if beside is None:
            raise SourceError(f"{name}.index: the file is gone.")
        index = beside.whole()
        if len(index) % 8:
            raise SourceError(f"{name}.index: {len(index)} bytes are no whole number of places.")
        # ends: (documents,), in ids
        ends = np.frombuffer(index, "<u8")
        told = int(ends[-1]) if len(ends) else 0
        if (ends[1:] < ends[:-1]).any() or told * np.dtype(dtype).itemsize != size:
            raise SourceError(
                f"{name}: {size:,} bytes, but its index tells of {told:,} ids in ascending places, "
                f"{told * np.dtype(dtype).itemsize:,} bytes as {dtype}. One of both is cut short, "
                "or its ids have another type (--dtype)."
            )
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        return raw_ids(file, dtype, starts=np.unique(starts))
