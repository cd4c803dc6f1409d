"""The bytes of a tar, member by member: the same ones on each host, at any time, for any user.

`tarfile.TarFile` fills a tar up to 10,240 bytes, and a member begins where the file stands that it
writes to. Here both are known before a byte is written, so that `tarfile` makes the heads alone.
"""

import io
import tarfile

import numpy as np

from tasks.core.reading.shard_tokens import Ids

END = bytes(2 * tarfile.BLOCKSIZE)  # of a tar


def member(name: str, content: bytes) -> bytes:
    """A file in a tar: its head, its content and padding; its time and owner are 0."""
    head = tarfile.TarInfo(name)
    head.size = len(content)
    return head.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def npy(ids: Ids) -> bytes:
    """What `numpy.save` writes."""
    file = io.BytesIO()
    np.save(file, ids)
    return file.getvalue()
