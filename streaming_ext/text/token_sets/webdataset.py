"""WebDataset tars of ids: a `.npy` a sample, a row or, with `--rows documents`, a document.

Rows go on from tar to tar of one name, `train-000000.tar` and so on.
"""

import io
import re
import tokenize

import numpy as np

from streaming_ext.base.errors import SourceError, UsageError, one_line
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.documents.streams import FileStream, packed_suffixes
from streaming_ext.text.documents.tar_members import Member, tar_members
from streaming_ext.text.token_sets.files.ids_of_file import (
    Ids,
    IdsOfFile,
    held_ids,
    numbered_neighbour,
)
from streaming_ext.text.token_sets.files.set_file import SetFile, pin_of_all
from streaming_ext.text.token_sets.token_set import TokenSetFormat

_NUMBERED = re.compile(r"(.*?)(\d+)(\.tar.*|\.tgz)")


class WebdatasetSet(TokenSetFormat):
    """See `TokenSetFormat`; a tar is held in memory."""

    name = "webdataset"
    suffixes = (*packed_suffixes(".tar"), ".tgz")

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """The ids of all samples.

        Raises:
            UsageError: the tar holds no `.npy`.
            SourceError: it is cut short, or an array in it damaged or no list of ids.
        """
        name = file.name
        found: list[Ids] = []
        keys: set[str] = set()
        with FileStream(file) as stream:
            for member in tar_members(stream, (".npy",)):
                if member.data is None:
                    continue
                folder, _, base = member.name.rpartition("/")
                key = f"{folder}/{base.partition('.')[0]}"
                if key in keys:
                    raise UsageError(
                        f"{name}: the sample {key.strip('/')} holds several .npy. Tars with one "
                        "array of ids a sample are read."
                    )
                keys.add(key)
                found.append(_array(member, name))
        if not found:
            raise UsageError(f"{name}: holds no sample with ids as .npy.")
        starts = np.cumsum([0, *map(len, found[:-1])])
        told = np.unique(starts) if options.rows == "documents" else None
        return held_ids(np.concatenate(found), starts=told)

    def glance(self, file: SetFile, options: IdOptions) -> None:
        """Nothing can be told without reading all of it."""

    def pin(self, file: SetFile, options: IdOptions) -> str:
        """Of the tars that rows may go on in."""
        return pin_of_all(file.folder, self.suffixes)

    def neighbour(self, file: SetFile, step: int, options: IdOptions) -> SetFile | None:
        """The tar of the same name with the next number."""
        return numbered_neighbour(file, step, _NUMBERED)


def _array(member: Member, where: str) -> Ids:
    if member.problem:
        raise SourceError(f"{where}: {member.name}: {member.problem}.")
    try:
        ids = np.load(io.BytesIO(member.data or b""), allow_pickle=False)
    except (
        ValueError,
        OSError,
        EOFError,
        OverflowError,
        MemoryError,
        RecursionError,
        SyntaxError,
        tokenize.TokenError,
    ) as error:
        raise SourceError(f"{where}: {member.name}: no array: {one_line(error)}.") from error
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise UsageError(
            f"{where}: {member.name}: {ids.ndim} dimensions of {ids.dtype}; a list of whole "
            "numbers is expected."
        )
    return np.asarray(ids)
