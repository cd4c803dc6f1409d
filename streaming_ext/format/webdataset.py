"""Tars for WebDataset: a sample is a member `KEY.npy` of its row's ids.

All members have one size, so that sample i begins at byte i * `stride`. A tar holds as many samples
as the MDS shard of the same `--shard-size` would, so that training sees the same order; with heads
and padding it is somewhat larger.

Tars are the same on each host, at any time, for any user. `tarfile.TarFile` fills a tar up to
10,240 bytes, and a member begins where the file stands that it writes to. Here both are known
before a byte is written, so `tarfile` makes the heads alone.
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
END: Final = bytes(2 * BLOCK)  # of a tar
_CODECS: Final = ("none", "gz")  # that readers of WebDataset unpack


def member(name: str, content: bytes) -> bytes:
    """A file in a tar: its head, its content and padding; its time and owner are 0."""
    head = tarfile.TarInfo(name)
    head.size = len(content)
    return head.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % BLOCK)


def npy(ids: npt.NDArray[Any]) -> bytes:
    """The bytes that `numpy.save` writes."""
    file = io.BytesIO()
    np.save(file, ids)
    return file.getvalue()


@dataclass(frozen=True, kw_only=True)
class WebdatasetFormat(MdsFormat):
    """Tars of rows of one length, as many as an MDS shard has samples."""

    @property
    def stride(self) -> int:
        """Bytes from one sample to the next: the member's head, its content, padding."""
        content = NPY_HEAD + self.sample_bytes
        return BLOCK + content + -content % BLOCK

    def require_possible(self) -> None:
        """Refuse what an MDS shard would, and what readers of WebDataset do not unpack."""
        super().require_possible()
        if self.compression.partition(":")[0] not in _CODECS:
            raise UsageError(
                f"--compression {self.compression}: readers of WebDataset unpack {_CODECS[1]}, or "
                f"nothing. Pass --compression {_CODECS[0]} or {_CODECS[1]}, or leave it out."
            )

    def shard_name(self, split: str, part: int, number: int) -> str:
        """Name of a raw tar relative to its split's folder.

        No two of a dataset end in the same name: caches of `webdataset` and `wids` use it as a key.
        """
        return f"{part:05}/{split}-{part:05}-{number:05}.tar"

    def raw_size(self, num_samples: Samples) -> Samples:
        """Size of a raw tar of this many samples in bytes, or of each of several."""
        return num_samples * self.stride + len(END)

    def header(self, num_samples: int) -> bytes:
        """Nothing stands before the first member."""
        return b""

    def content(self, raw: memoryview, *, prefix: str, first: int) -> bytes:
        """A tar of the rows; no two of a build have one key, those of merged datasets may."""
        rows = np.frombuffer(raw, self.id_type).reshape(-1, self.sequence_length)
        members = [
            member(f"{prefix}{number:012}.npy", npy(row)) for number, row in enumerate(rows, first)
        ]
        return b"".join([*members, END])

    def tokens_of(self, raw: bytes | memoryview, num_samples: int) -> TokenArray:
        """The samples of a raw tar: (num_samples, sequence_length).

        Raises:
            CorruptDatasetError: it is no such tar.
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
        """A list of tars as `wids` reads it, with their hashes."""
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
        """The tars that an index lists; read, their ids lie end to end.

        Raises:
            CorruptDatasetError: it is damaged.
        """
        try:
            shards = [Shard(**listed["shard"]) for listed in json.loads(index)["shardlist"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptDatasetError(f"{where}: no list of tars: {one_line(error)}") from error
        table = ShardTable.of_shards(shards, sample_tokens=self.sequence_length, dtype=self.dtype)
        return replace(table, rewriting=self._flattened)

    def _flattened(self, raw: bytes, samples: int, where: str) -> bytes:
        return self.tokens_of(raw, samples).tobytes()
