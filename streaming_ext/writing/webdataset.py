"""The output `webdataset`: a token stream cut into rows, each a member of a tar.

Tars are the same on each host, at any time, for any user. `tarfile.TarFile` fills a tar up to
10,240 bytes, and a member begins where the file stands that it writes to. Here both are known
before a byte is written, so that `tarfile` makes the heads alone.
"""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.format.spec import DatasetSpec
from streaming_ext.writing.split_writer import Memory, RawShard, StreamWriter

END = bytes(2 * tarfile.BLOCKSIZE)  # of a tar


def member(name: str, content: bytes) -> bytes:
    """A file in a tar: its head, its content and padding; its time and owner are 0."""
    head = tarfile.TarInfo(name)
    head.size = len(content)
    return head.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def npy(ids: npt.NDArray[Any]) -> bytes:
    """What `numpy.save` writes."""
    file = io.BytesIO()
    np.save(file, ids)
    return file.getvalue()


def open_webdataset(folder: Path, part: int, spec: DatasetSpec, memory: Memory) -> StreamWriter:
    """One split of a part as tars; see `OpenSplit`."""
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    # No two samples that are made in one run have one key; those of merged datasets may.
    prefix = f"{folder.name}-{part:05}-"

    def tar(raw: RawShard, first: int) -> bytes:
        rows = np.frombuffer(raw.data, dtype).reshape(raw.samples, -1)
        members = [
            member(f"{prefix}{number:012}.npy", npy(row)) for number, row in enumerate(rows, first)
        ]
        return b"".join([*members, END])

    return StreamWriter(folder, part, spec, memory, content=tar)
