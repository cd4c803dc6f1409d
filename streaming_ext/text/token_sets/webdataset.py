"""WebDataset tars of ids: a `.npy` a sample, a row or, with `--rows documents`, a document.

Rows continue from tar to tar of one name, `train-000000.tar` and so on.
"""

import io
import re

import numpy as np

from streaming_ext.base.errors import SourceError, UsageError, one_line
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.documents.files import Stream, packed_suffixes
from streaming_ext.text.documents.source_format import faults
from streaming_ext.text.documents.tar_members import Member, tar_members
from streaming_ext.text.token_sets.set_file import Ids, IdsOfFile, SetFile, held_ids
from streaming_ext.text.token_sets.token_set import TokenSetFormat


class WebdatasetSet(TokenSetFormat):
    """See `TokenSetFormat`; a tar is held in memory."""

    name = "webdataset"
    suffixes = (*packed_suffixes(".tar"), ".tgz")
    numbered = re.compile(r"(.*?)(\d+)(\.tar.*|\.tgz)")

    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """See `TokenSetFormat.open`."""
        found: dict[str, Ids] = {}
        with Stream(file) as stream, faults(file, "tar"):
            for member in tar_members(stream, (".npy",)):
                if member.data is None and not member.problem:
                    continue
                folder, _, base = member.name.rpartition("/")
                key = f"{folder}/{base.partition('.')[0]}"
                if key in found:
                    raise UsageError(
                        f"{file.name}: the sample {key.strip('/')} holds several .npy. Tars with "
                        "one array of ids a sample are read."
                    )
                found[key] = _array(member, file.name)
        if not found:
            raise UsageError(f"{file.name}: holds no sample with ids as .npy.")
        arrays = [*found.values()]
        starts = np.unique(np.cumsum([0, *map(len, arrays[:-1])]))
        is_document = options.rows == "documents"
        return held_ids(np.concatenate(arrays), starts=starts if is_document else None)

    def glance(self, file: SetFile, options: IdOptions) -> None:
        """See `TokenSetFormat.glance`: nothing is known before all is read."""


def _array(member: Member, where: str) -> Ids:
    if member.problem:
        raise SourceError(f"{where}: {member.name}: {member.problem}.")
    try:
        ids = np.load(io.BytesIO(member.data or b""), allow_pickle=False)
    except Exception as error:
        raise SourceError(f"{where}: {member.name}: no array: {one_line(error)}.") from error
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise UsageError(
            f"{where}: {member.name}: {ids.ndim} dimensions of {ids.dtype}; a list of whole "
            "numbers is expected."
        )
    return np.asarray(ids)
