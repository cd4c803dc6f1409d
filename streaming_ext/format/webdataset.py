"""Tars for WebDataset: a sample is a member `KEY.npy` with the ids of its row.

All members have one size, so sample i begins at byte i * `stride`. A tar holds as many samples as
an MDS shard with the same `--shard-size`, so that training sees the same order. The heads of the
members and padding make it somewhat larger.

The bytes of a tar do not depend on host, time or user. `tarfile` makes only the heads of the
members: `tarfile.TarFile` would fill a tar up to a multiple of 10,240 bytes, and would begin a
member at the position of the file that it writes to.
"""

import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.errors import CorruptDatasetError, UsageError, one_line
from streaming_ext.format.mds import MdsFormat, Samples
from streaming_ext.format.shard import Shard, ShardTable, TokenArray

BLOCK: Final = tarfile.BLOCKSIZE
NPY_HEAD: Final = 128
END: Final = bytes(2 * BLOCK)  # the end of each tar
_CODECS: Final = ("none", "gz")  # the ones that readers of WebDataset unpack


def member(name: str, content: bytes) -> bytes:
    """Return the bytes of a file in a tar: head, content and padding; time and owner are 0."""
    head = tarfile.TarInfo(name)
    head.size = len(content)
    return head.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % BLOCK)


def npy(ids: npt.NDArray[Any]) -> bytes:
    """Return the bytes that `numpy.save` writes for some ids."""
    file = io.BytesIO()
    np.save(file, ids)
    return file.getvalue()


@dataclass(frozen=True, kw_only=True)
class WebdatasetFormat(MdsFormat):
    """Tars of rows of one length; a tar holds as many rows as an MDS shard holds samples."""

    @property
    def stride(self) -> int:
        """Bytes from one sample to the next: the member's head, its content, padding."""
        content = NPY_HEAD + self.sample_bytes
        return BLOCK + content + -content % BLOCK

    def require_possible(self) -> None:
        """Refuse a size as `MdsFormat` does, and a compression that WebDataset does not unpack."""
        super().require_possible()
        if self.compression.partition(":")[0] not in _CODECS:
            raise UsageError(
                f"--compression {self.compression}: readers of WebDataset unpack {_CODECS[1]}, or "
                f"nothing. Pass --compression {_CODECS[0]} or {_CODECS[1]}, or leave it out."
            )

    def shard_name(self, split: str, part: int, number: int) -> str:
        """Return the name of a raw tar relative to its split's folder.

        The file name is unique in a dataset: caches of `webdataset` and `wids` use it as a key.
        """
        return f"{part:05}/{split}-{part:05}-{number:05}.tar"

    def raw_size(self, num_samples: Samples) -> Samples:
        """Return the size in bytes of a raw tar of this many samples, or of each of several."""
        return num_samples * self.stride + len(END)

    def header(self, num_samples: int) -> bytes:
        """Return no bytes, since a tar begins with its first member."""
        return b""

    def content(self, raw: memoryview, *, prefix: str, first: int) -> bytes:
        """Return a tar of the rows; keys are unique in a build, but not in merged datasets."""
        rows = np.frombuffer(raw, self.id_type).reshape(-1, self.sequence_length)
        members = [
            member(f"{prefix}{number:012}.npy", npy(row)) for number, row in enumerate(rows, first)
        ]
        return b"".join([*members, END])

    def tokens_of(self, raw: bytes | memoryview, num_samples: int) -> TokenArray:
        """Return the samples of a raw tar: (num_samples, sequence_length).

        Raises:
            CorruptDatasetError: the data are not a tar of this many samples.
        """
        head = npy(np.zeros(self.sequence_length, self.id_type))[:NPY_HEAD]
        first = BLOCK + NPY_HEAD
        if len(raw) == self.raw_size(num_samples):
            # members: (num_samples, stride)
            members = np.frombuffer(raw, np.uint8, num_samples * self.stride)
            members = members.reshape(num_samples, self.stride)
            if (members[:, BLOCK:first] == np.frombuffer(head, np.uint8)).all():
                ids = np.ascontiguousarray(members[:, first : first + self.sample_bytes])
                return ids.view(self.id_type)
        raise CorruptDatasetError(
            f"not a tar of {num_samples} samples of {self.sequence_length} {self.dtype} ids: "
            f"{len(raw)} bytes, expected {self.raw_size(num_samples)} with a .npy each"
        )

    def index(self, shards: Iterable[Shard]) -> bytes:
        """Return a list of the tars and their hashes, in the form that `wids` reads."""
        listed = [
            {
                "url": shard.name,
                "nsamples": shard.samples,
                "filesize": shard.size,
                "shard": shard.model_dump(),
            }
            for shard in shards
        ]
        index = {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "name": "tokens",
            "shardlist": listed,
        }
        return json.dumps(index, sort_keys=True).encode()

    def table(self, index: bytes, *, where: str) -> ShardTable:
        """Return the tars that an index lists; they are rewritten as ids end to end when read.

        Raises:
            CorruptDatasetError: the index is damaged.
        """
        try:
            shards = [Shard(**listed["shard"]) for listed in json.loads(index)["shardlist"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptDatasetError(f"{where}: no list of tars: {one_line(error)}") from error
        table = ShardTable.of_shards(shards, sample_tokens=self.sequence_length, dtype=self.dtype)
        return replace(table, rewriting=self._flattened)

    def _flattened(self, raw: bytes, samples: int, where: str) -> bytes:
        return self.tokens_of(raw, samples).tobytes()
