"""llm.c's and modded-nanogpt's `.bin`: a head that counts the ids, then the ids.

An end-of-text id stands before each document. Documents go on from file to file of one name,
`fineweb_train_000001.bin` and so on.
"""

import re

import numpy as np

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.token_sets.files.ids_of_file import (
    IdsOfFile,
    numbered_neighbour,
    raw_ids,
)
from streaming_ext.text.token_sets.files.set_file import SetFile, pin_of_all
from streaming_ext.text.token_sets.token_set import TokenSetFormat

_HEAD = 1024  # 256 numbers of 32 bits
_TYPES = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
_NUMBERED = re.compile(r"(.*?)(\d+)(\.bin)")


class LlmcSet(TokenSetFormat):
    """See `TokenSetFormat`."""

    name = "llmc"
    suffixes = (".bin",)
    is_cut = True

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """The ids behind the head, which must count them.

        Raises:
            UsageError: there is no such head.
            SourceError: it counts others.
        """
        name, size = file.name, file.size
        head = np.frombuffer(file.read(0, min(_HEAD, size) // 4 * 4), "<i4")
        dtype = _TYPES.get((int(head[0]), int(head[1]))) if len(head) * 4 == _HEAD else None
        if dtype is None:
            raise UsageError(
                f"{name}: does not begin as files of llm.c do (20240520, 1 or 20240801, 7). Files "
                "of bare ids are of the format nanogpt."
            )
        told = _HEAD + int(head[2]) * np.dtype(dtype).itemsize
        if told != size:
            raise SourceError(
                f"{name}: {size:,} bytes, but its head counts {int(head[2]):,} ids, which make "
                f"{told:,}. It is cut short; copy it again."
            )
        return raw_ids(file, dtype, head=_HEAD)

    def pin(self, file: SetFile, options: IdOptions) -> str:
        """Of the files that documents may go on in."""
        return pin_of_all(file.folder, self.suffixes)

    def neighbour(self, file: SetFile, step: int, options: IdOptions) -> SetFile | None:
        """The file of the same name with the next number."""
        return numbered_neighbour(file, step, _NUMBERED)
