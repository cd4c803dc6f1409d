"""Token ids in MDS shards of other tools, which may have other columns, or sizes in each sample.

Such a shard is rewritten as its token ids end to end when it comes into the cache. A set whose
samples differ in length is refused.

Layout of the format: mosaicml-streaming, ``format/mds/writer.py`` and ``format/mds/encodings.py``.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints, windows
from streaming_ext.base.errors import CorruptDatasetError, UsageError

_TYPE_CODES: Final = {16: "uint16", 32: "uint32", 33: "int32", 65: "int64"}
COLUMN: Final = "tokens"
_OPTION: Final = "token_dtype= (of `import`: --dtype)"  # gives a type that the set does not state
ID_TYPES: Final = tuple(_TYPE_CODES.values())
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleLayout:
    """The columns of a sample.

    Attributes:
        sizes: bytes of each column; None if each sample states its own size.
        column: the number of the column that holds the token ids.
        encoding: the encoding of that column, `bytes` or `ndarray[:TYPE[:LENGTH]]`.
        token_dtype: type of the ids, if it is known.
    """

    sizes: tuple[int | None, ...]
    column: int
    encoding: str
    token_dtype: str | None

    @classmethod
    def of(
        cls,
        names: tuple[str, ...],
        encodings: tuple[str, ...],
        sizes: tuple[int | None, ...],
        token_dtype: str | None,
    ) -> "SampleLayout":
        """Read the description of the columns in an index.

        Raises:
            ValueError: no column holds token ids.
            UsageError: the type of the ids is unknown.
        """
        if COLUMN not in names:
            raise ValueError(f"columns are {', '.join(names)}, expected one named {COLUMN!r}")
        if not len(names) == len(encodings) == len(sizes):
            raise ValueError("as many columns, encodings and sizes are expected")
        column = names.index(COLUMN)
        kind, _, rest = encodings[column].partition(":")
        stated = rest.partition(":")[0]
        if kind not in ("bytes", "ndarray") or (stated and stated not in ID_TYPES):
            raise ValueError(
                f"encoding is {encodings[column]!r}, expected bytes, or ndarray with "
                f"{', '.join(ID_TYPES)}"
            )
        if token_dtype not in (None, *ID_TYPES):
            raise UsageError(f"{_OPTION} may be {', '.join(ID_TYPES)}; got {token_dtype!r}.")
        if kind == "bytes" and token_dtype is None:
            raise UsageError(
                f"The column {COLUMN!r} is stored as bytes, which do not say the type of an id. "
                f"Pass it as {_OPTION}: int64 (llm-foundry's older sets), uint16, uint32 or int32."
            )
        if stated and token_dtype not in (None, stated):
            raise UsageError(
                f"{_OPTION} says {token_dtype}, but the set says {stated}: leave it out."
            )
        return cls(
            sizes=sizes,
            column=column,
            encoding=encodings[column],
            token_dtype=stated or token_dtype,
        )

    @property
    def flat_length(self) -> int | None:
        """Tokens per sample, if a shard ends with the ids of all its samples end to end."""
        match = re.fullmatch(r"ndarray:\w+:([1-9]\d{0,8})", self.encoding)
        return int(match[1]) if match and len(self.sizes) == 1 else None

    def token_ids(self, raw: bytes, samples: int, where: str) -> npt.NDArray[Any]:
        """Return the ids of a raw shard: (samples, tokens per sample).

        Raises:
            CorruptDatasetError: the shard contradicts itself, or its samples differ in length;
                the message names the first sample that differs.
        """
        cells = self._cells(np.frombuffer(raw, np.uint8), samples, where)
        dtype, header = self._header(cells, where)
        differs = (cells[:, :header] != cells[0, :header]).any(axis=1)
        if differs.any():
            raise CorruptDatasetError(
                f"{where}: sample {int(np.argmax(differs))} differs from the first one in the type "
                "or shape of its token ids. Only sets of one length are read."
            )
        values = np.ascontiguousarray(cells[:, header:])
        if values.shape[1] == 0 or values.shape[1] % np.dtype(dtype).itemsize:
            raise CorruptDatasetError(
                f"{where}: {values.shape[1]} bytes per sample are no whole number of {dtype} ids. "
                f"Pass the right type as {_OPTION}."
            )
        return values.view(np.dtype(dtype).newbyteorder("<"))

    def flattened(self, raw: bytes, samples: int, where: str) -> bytes:
        """Return the ids of a raw shard end to end; see `token_ids`."""
        return self.token_ids(raw, samples, where).tobytes()

    def first_sample(self, raw: bytes, samples: int, where: str) -> tuple[str, int]:
        """Return the type of an id and the tokens per sample, as a raw shard shows them.

        Raises:
            UsageError: the ids have another type than the one that the user gave.
        """
        ids = self.token_ids(raw, samples, where)
        if self.encoding == "bytes" and (found := wider_type(ids.reshape(-1))):
            name, reason = found
            raise UsageError(f"{where}: {reason}. Pass {name} as {_OPTION}.")
        return ids.dtype.name, ids.shape[1]

    def _cells(self, raw: Bytes, samples: int, where: str) -> Bytes:
        """Return the bytes of the ids' column in each sample: (samples, bytes)."""
        head = 4 * (samples + 2)
        damaged = CorruptDatasetError(f"{where} does not hold the {samples} samples of the index.")
        if len(raw) < head or int(raw[:4].view("<u4")[0]) != samples:
            raise damaged
        offsets = raw[4:head].view("<u4").astype(np.int64)
        own = [number for number, size in enumerate(self.sizes) if size is None]
        starts, ends = offsets[:-1], offsets[1:]
        if starts[0] < head or ends[-1] != len(raw) or (ends - starts < 4 * len(own)).any():
            raise damaged
        # said: the sizes that each sample states; sizes: (samples, columns)
        said = _cut_out(raw, starts, 4 * len(own)).view("<u4").astype(np.int64)
        sizes = np.empty((samples, len(self.sizes)), np.int64)
        for number, size in enumerate(self.sizes):
            sizes[:, number] = said[:, own.index(number)] if size is None else size
        if (4 * len(own) + sizes.sum(axis=1) != ends - starts).any():
            raise damaged
        wrong = np.flatnonzero(sizes[:, self.column] != sizes[0, self.column])
        if wrong.size:
            at = int(wrong[0])
            raise CorruptDatasetError(
                f"{where}: sample {at} holds {sizes[at, self.column]} bytes of token ids, sample 0 "
                f"{sizes[0, self.column]}. Only sets whose samples have one length are read: "
                "pack them to one first."
            )
        columns = starts + 4 * len(own) + sizes[:, : self.column].sum(axis=1)
        return _cut_out(raw, columns, int(sizes[0, self.column]))

    def _header(self, cells: Bytes, where: str) -> tuple[str, int]:
        """Return the type of an id, and the number of bytes before a sample's ids."""
        kind, _, stated = self.encoding.partition(":")
        cell = cells[0]
        if kind == "bytes":
            return str(self.token_dtype), 0
        if len(cell) < 2:
            raise CorruptDatasetError(f"{where}: its arrays have no header.")
        at, dtype = (0, self.token_dtype) if stated else (1, _TYPE_CODES.get(int(cell[0])))
        if ":" not in stated:  # a byte for the number of dimensions and width, then the shape
            dimensions, width = int(cell[at]) >> 2, 1 << (int(cell[at]) & 3)
            at += 1 + dimensions * width
        if dtype is None or at > len(cell) or self.token_dtype not in (None, dtype):
            raise CorruptDatasetError(
                f"{where}: its arrays hold {dtype or 'no ids'}, expected "
                f"{self.token_dtype or ', '.join(ID_TYPES)}."
            )
        return dtype, at


def _cut_out(raw: Bytes, starts: Ints, width: int) -> Bytes:
    """Copy `width` bytes from each start: (starts, width)."""
    if width == 0 or len(starts) == 0:
        return np.empty((len(starts), 0), np.uint8)
    return windows(raw, width)[starts].view(np.uint8).reshape(len(starts), width)


_LOOKED_AT = 2**12  # ids
_FEWEST = 64  # ids; no real text of this length has a 0 at every other position
_MOST_BITS = 64


def wider_type(ids: npt.NDArray[Any]) -> tuple[str, str] | None:
    """Find out whether ids were read with too few of their bits.

    If so, all but one of 2, 4 or 8 ids are 0.

    Args:
        ids: the ids as they were read, from the beginning of a file or of a shard: (ids,).

    Returns:
        The true type and the reason, for a message; None if the ids do not show it.
    """
    first = ids[:_LOOKED_AT]
    bits = own = 8 * ids.itemsize
    while bits < _MOST_BITS and len(first) >= _FEWEST and _has_gaps(first):
        first, bits = first[::2], 2 * bits
    if bits == own:
        return None
    name = "int64" if bits == _MOST_BITS else f"uint{bits}"
    return (
        name,
        f"all but one of {bits // own} ids are 0, so they have {bits} bits and not {own}",
    )


def _has_gaps(ids: npt.NDArray[Any]) -> bool:
    """Return whether every other id is 0, and at least half of the others are not.

    The others may hold zeros too, since rows may be filled up with 0.
    """
    return not ids[1::2].any() and 4 * np.count_nonzero(ids) >= len(ids)
