"""Documents of ids: cut out of a stream at end-of-text ids, and carried as texts are.

A document is a run of ids without an end-of-text id, cut also where the format says that one
begins. With the end-of-text id 9 and a document that begins at position 5, as the format says:

    position  0 1 2 3 4 5 6 7 8 9
    id        9 1 2 9 3 4 5 9 9 6    documents: 1 2, 3, 4 5, and one that begins with 6
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import SourceError
from streaming_ext.format.mds_foreign import wider_type
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.documents.document_rows import DocumentBatch
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.token_sets.set_file import Ids
from streaming_ext.text.tokenizer.engine import Encoded

ID_BYTES = 4  # of each, if ids are carried as texts are
Stretch = npt.NDArray[np.uint32]  # some consecutive ids


@dataclass(frozen=True, slots=True)
class Cut:
    """The documents of a stretch of ids.

    Attributes:
        ids: of the documents, without end-of-text ids.
        lengths: of each document, none of them 0.
        positions: where each begins in the stretch.
        rest: where the document begins that does not end in the stretch; the stretch's length if
            all do.
    """

    ids: Stretch
    lengths: Ints
    positions: Ints
    rest: int


def cut(ids: Stretch, eot_id: int, starts: Ints) -> Cut:
    """Cut documents out of ids, the first of which begins one.

    Args:
        ids: (ids,).
        eot_id: the end-of-text id.
        starts: where documents begin, as the format says, in (0, ids].
    """
    ends, after = bounds(ids, eot_id, starts)
    begins = np.concatenate([[0], after[:-1]])[: len(ends)]
    kept = ends > begins
    rest = int(after[-1]) if len(after) else 0
    ended = ids[:rest]
    return Cut(ended[ended != eot_id], (ends - begins)[kept], begins[kept], rest)


def bounds(ids: Stretch, eot_id: int, starts: Ints) -> tuple[Ints, Ints]:
    """Where documents end in a stretch of ids, and where the next begins after each."""
    eots = np.flatnonzero(ids == eot_id)
    if not len(starts):
        return eots, eots + 1
    ends, after = np.concatenate([starts, eots]), np.concatenate([starts, eots + 1])
    order = np.lexsort((after, ends))
    return ends[order], after[order]


def checked(ids: Ids, options: IdOptions, *, where: str, first: int) -> Stretch:
    """Ids as 32 bits each.

    Args:
        ids: as they were read.
        options: hold the vocabulary.
        where: the file's name in messages.
        first: position of the first of them in the file.

    Raises:
        SourceError: one is outside the vocabulary.
    """
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < options.vocab_size:
        wrong = int(np.flatnonzero((ids < 0) | (ids >= options.vocab_size))[0])
        raise SourceError(
            f"{where}: id {int(ids[wrong])} at position {first + wrong:,} is outside the "
            f"vocabulary of {options.vocab_size:,} ids. Is --tokenizer the one of the set, and "
            "--dtype the type of its ids?"
        )
    return ids.astype(np.uint32)


def require_width(ids: Ids, *, where: str) -> None:
    """Refuse ids that are read with half of their bits, or fewer.

    Args:
        ids: as they were read, from the beginning of a file or of a shard.
        where: the file's name in messages.

    Raises:
        SourceError: all but every second, or every fourth of them are 0.
    """
    if found := wider_type(ids):
        raise SourceError(f"{where}: {found.told}. Pass --dtype {found.name}.")


def batch_of(
    ids: Stretch, lengths: Ints, positions: Ints, row: int, fraction: float
) -> DocumentBatch:
    """Documents of ids as a batch of texts: binaries of four bytes an id, little-endian.

    Args:
        ids: of all documents.
        lengths: of each.
        positions: of each in its file.
        row: of the first.
        fraction: see `DocumentBatch`.
    """
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64) * ID_BYTES
    data = np.ascontiguousarray(ids, "<u4")
    texts = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    rows = np.arange(row, row + len(lengths), dtype=np.int64)
    return DocumentBatch(rows, texts, len(rows), fraction, positions)


class IdsAsTheyAre:
    """The engine for documents of ids, which need no encoding; see `Engine`."""

    name = "none"
    reason = "the sources hold ids"

    def encode(self, texts: pa.LargeBinaryArray) -> Encoded:
        """The ids of each document."""
        data, offsets = text_buffers(texts)
        ids = np.frombuffer(data[int(offsets[0]) : int(offsets[-1])], "<u4")
        return Encoded(ids, (offsets - offsets[0]) // ID_BYTES)
