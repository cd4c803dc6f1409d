"""The bytes of a Parquet file of one column `input_ids: list<int32>`, neither packed nor nullable.

Arrow would write the same to any reader; but it looks at each id for what is known of all of them
here, that none is null and where the lists begin, and takes several times as long. Every id is
copied once, to have 32 bits.

A row group is cut into pages:  head, levels of repetition, levels of definition, ids
Layout: parquet.apache.org, `parquet.thrift` and "Encodings".
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tasks.core.exports.containers.thrift import I32, struct, varint
from tasks.core.reading.shard_tokens import Ids

Ints = npt.NDArray[np.int64]
Chunk = bytes | npt.NDArray[np.int32]

MAGIC = b"PAR1"
_PAGE_IDS = 2**18  # a mebibyte, as Arrow has it
_LONGEST_PAGE = 2**26  # of a list that is longer than a page; some readers want lists whole in one
_INT32, _PLAIN, _RLE, _NOT_PACKED = I32(1), I32(0), I32(3), I32(0)
_REQUIRED, _OPTIONAL, _REPEATED = I32(0), I32(1), I32(2)
_LIST = I32(3)
_THERE = 3  # definition: list, element and id are all there
# Which fields these are, the file's description says by their numbers.
_SCHEMA = [
    {3: _REQUIRED, 4: "schema", 5: I32(1)},
    {3: _OPTIONAL, 4: "input_ids", 5: I32(1), 6: _LIST, 10: {3: {}}},
    {3: _REPEATED, 4: "list", 5: I32(1)},
    {1: _INT32, 3: _OPTIONAL, 4: "element"},
]


class IdLists:
    """Writes row groups of lists of ids, one behind the other."""

    def __init__(self) -> None:
        """Begin, behind `MAGIC`."""
        self._size = len(MAGIC)
        self._rows = 0
        self._groups: list[dict[int, object]] = []

    def group(self, ids: Ids, ends: Ints) -> Iterator[Chunk]:
        """The bytes of a row group.

        Args:
            ids: of all its lists, (ids,).
            ends: where each list ends among them, (lists,); none is empty.
        """
        first, begins = self._size, np.concatenate([[0], ends[:-1]])
        for begin, end in _pages(ends):
            page = ids[begin:end]
            inside = slice(*np.searchsorted(begins, [begin, begin + len(page)]))
            for chunk in _page(page, begins[inside] - begin):
                self._size += size_of(chunk)
                yield chunk
        size = self._size - first
        column = {
            1: _INT32,
            2: [_RLE, _PLAIN],
            3: ["input_ids", "list", "element"],
            4: _NOT_PACKED,
            5: len(ids),
            6: size,
            7: size,
            9: first,
        }
        self._groups.append({1: [{2: 0, 3: column}], 2: size, 3: len(ends), 5: first, 6: size})
        self._rows += len(ends)

    def end(self) -> bytes:
        """What stands behind the last row group."""
        foot = struct(
            {1: I32(2), 2: _SCHEMA, 3: self._rows, 4: self._groups, 6: "shardmill version 1"}
        )
        return foot + len(foot).to_bytes(4, "little") + MAGIC


def size_of(chunk: Chunk) -> int:
    """Bytes of some of a file."""
    return len(chunk) if isinstance(chunk, bytes) else chunk.nbytes


def _pages(ends: Ints) -> Iterator[tuple[int, int]]:
    """Where pages begin and end among the ids of a row group: a list lies in one of them."""
    begin, count = 0, int(ends[-1])
    while begin < count:
        behind = int(np.searchsorted(ends, begin + _PAGE_IDS, "right"))
        last = int(ends[behind - 1]) if behind else 0
        end = last if last > begin else min(int(ends[behind]), begin + _LONGEST_PAGE)
        yield begin, end
        begin = end


def _page(ids: Ids, begins: Ints) -> Iterator[Chunk]:
    """A page: its head with all levels, and its ids.

    Args:
        ids: of the page, (ids,).
        begins: where lists begin among them, (lists,).
    """
    levels = b"".join(
        len(some).to_bytes(4, "little") + some
        for some in (
            min(_begun_in_runs(begins, len(ids)), _begun_in_bits(begins, len(ids)), key=len),
            varint(len(ids) << 1) + bytes([_THERE]),
        )
    )
    size = I32(len(levels) + 4 * len(ids))
    held = {1: I32(len(ids)), 2: _PLAIN, 3: _RLE, 4: _RLE}
    yield struct({1: I32(0), 2: size, 3: size, 5: held}) + levels
    yield np.ascontiguousarray(ids, "<i4")


def _begun_in_runs(begins: Ints, count: int) -> bytes:
    """Levels of repetition as runs: a zero where a list begins, ones up to the next."""
    zeros = np.unique(np.concatenate([[0], begins]))
    ones = np.diff(zeros, append=count) - 1
    is_zero = np.ones(len(zeros), bool)
    if not len(begins) or begins[0]:  # goes on from the page before
        is_zero[0], ones[0] = False, ones[0] + 1
    twice = ones << 1  # runs: (runs, 7), of which those bytes count that are `told`
    runs = np.zeros((len(zeros), 7), np.uint8)
    runs[:, 0] = 2  # one time the value 0, then a number in seven bits a byte of the value 1
    sevens = [twice >> shift for shift in (0, 7, 14, 21)]
    for place, seven in enumerate(sevens, start=2):
        runs[:, place] = seven & 127 | (seven > 127) << 7
    runs[:, 6] = 1
    some = ones > 0
    bytes_told = [seven > 0 for seven in sevens]
    told = np.stack([is_zero, is_zero, *bytes_told, some], axis=1)
    data: bytes = runs[told].tobytes()
    return data


def _begun_in_bits(begins: Ints, count: int) -> bytes:
    """The same with a bit each, which is shorter where lists are short."""
    bits = np.full(-(-count // 8), 255, np.uint8)
    np.subtract.at(bits, begins >> 3, (1 << (begins & 7)).astype(np.uint8))
    return varint(len(bits) << 1 | 1) + bits.tobytes()
