"""A map of domains: runs of tokens of one domain in a split's stream, looked up in a mapped file.

starts     int64 (runs,), first token of each run
codes      int32 (runs,), number of its domain, -1 for padding
directory  JSON: names of the domains, counts, the hash of what stands before
end        length of the directory, 8 bytes; its XXH3-128, 16 bytes
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import xxhash

from streaming_ext.base.arrays import Ints
from streaming_ext.errors import CorruptDatasetError
from streaming_ext.shards.content import content_of

VERSION: Final = 1
PADDING: Final = -1
_TAIL: Final = 24
_COPIED: Final = 1 << 24  # bytes at a time
Codes = npt.NDArray[np.int32]


def write_map(
    file: BinaryIO, runs: Iterable[tuple[Ints, Codes]], names: list[str], *, tokens: int
) -> None:
    """Write a map.

    Args:
        file: empty.
        runs: starts and codes, in order.
        names: of the domains by their codes, complete when all runs have come.
        tokens: of the split's stream.
    """
    count = 0
    whole = xxhash.xxh3_128()
    with tempfile.TemporaryFile() as codes:
        for starts, own in runs:
            count += len(starts)
            for data, out in ((starts.astype("<i8"), file), (own.astype("<i4"), codes)):
                out.write(data.tobytes())
            whole.update(starts.astype("<i8").tobytes())
        codes.seek(0)
        while some := codes.read(_COPIED):
            whole.update(some)
        codes.seek(0)
        shutil.copyfileobj(codes, file, _COPIED)
    told = {
        "version": VERSION,
        "runs": count,
        "tokens": tokens,
        "xxh128": whole.hexdigest(),
        "names": names,
    }
    directory = json.dumps(told).encode()
    file.write(directory + len(directory).to_bytes(8, "little"))
    file.write(xxhash.xxh3_128_digest(directory))


class DomainMap:
    """The domains of the tokens of one split.

    Attributes:
        path: of the file.
        names: of the domains, by their codes.
        tokens: of the stream.
    """

    def __init__(self, path: Path, *, verify: bool = True, maps: bool = True) -> None:
        """Open a file.

        Args:
            path: of it.
            verify: whether its content is compared with its hash.
            maps: whether it is mapped; else it is read into memory.

        Raises:
            FileNotFoundError: there is none.
            CorruptDatasetError: it is damaged, or was made by another version.
        """
        self.path, self._maps = path, maps
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size < _TAIL:
                raise self._damaged(f"{size} bytes")
            mapped = content_of(descriptor, size, maps=maps)
        finally:
            os.close(descriptor)
        length = int.from_bytes(mapped[-_TAIL:-16], "little")
        directory = mapped[max(0, size - _TAIL - length) : size - _TAIL]
        if xxhash.xxh3_128_digest(directory) != mapped[-16:]:
            raise self._damaged("its directory has another hash")
        told = json.loads(directory)
        if told["version"] != VERSION or size != 12 * told["runs"] + length + _TAIL:
            raise self._damaged(f"version {told['version']}, {told['runs']} runs")
        runs = told["runs"]
        if verify:
            with memoryview(mapped)[: 12 * runs] as content:
                if xxhash.xxh3_128_hexdigest(content) != told["xxh128"]:
                    raise self._damaged("its content has another hash")
        self._starts = np.frombuffer(mapped, "<i8", runs)
        self._codes = np.frombuffer(mapped, "<i4", runs, 8 * runs)
        self.names = tuple(told["names"])
        self.tokens = int(told["tokens"])

    def __getstate__(self) -> dict[str, object]:
        """Another process maps the file itself."""
        return {"path": self.path, "maps": self._maps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open what this process's parent has verified."""
        self.__init__(**state, verify=False)  # type: ignore[misc]

    def look_up(self, starts: Ints, lengths: Ints) -> tuple[Ints, Codes, Ints]:
        """The runs in some spans of the stream.

            runs of domain 0 from 0 on, of domain 1 from 10 on
            spans [4, 8) and [8, 12): of spans 0, 1 and 1, with 4, 2 and 2 tokens of 0, 0 and 1

        Args:
            starts: first token of each span: (spans,).
            lengths: tokens of each: (spans,).

        Returns:
            the span, the domain and the tokens of each run within a span: (runs,) each.
        """
        first = np.searchsorted(self._starts, starts, side="right") - 1
        behind = np.searchsorted(self._starts, starts + lengths, side="left")
        counts = behind - first
        span = np.repeat(np.arange(len(starts)), counts)
        run = np.arange(len(span)) + np.repeat(first - np.cumsum(counts) + counts, counts)
        begins = np.maximum(self._starts[run], starts[span])
        ends = np.append(begins[1:], 0)
        last = np.cumsum(counts) - 1
        ends[last] = starts + lengths
        return span, self._codes[run], ends - begins

    def _damaged(self, cause: str) -> CorruptDatasetError:
        return CorruptDatasetError(
            f"The map of domains {self.path} is damaged: {cause}. Remove it: it is made again."
        )
