"""Documents of ids: cut out of a stream at end-of-text ids, and carried as texts are.

A document is a run of ids without an end-of-text id, cut also where the format says that one
begins. With the end-of-text id 9 and a document that begins at place 5, as the format says:

    place  0 1 2 3 4 5 6 7 8 9
    id     9 1 2 9 3 4 5 9 9 6    documents: 1 2, 3, 4 5, and one that begins with 6
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import SourceError
from streaming_ext.format.mds_foreign import wider_type
from streaming_ext.format.spec import IdOptions
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.token_sets.files.ids_of_file import Ids
from streaming_ext.text.tokenizer.engine import Encoded

ID_BYTES = 4  # of each, where ids are carried as texts are


@dataclass(frozen=True, slots=True)
class Cut:
    """What was cut out of a stretch of ids.

    Attributes:
        ids: of the documents, without end-of-text ids.
        lengths: of each document, none of them 0.
        places: where each begins in the stretch.
        rest: where the document begins in the stretch that does not end there; the stretch's end
            where all do.
    """

    ids: npt.NDArray[np.uint32]
    lengths: Ints
    places: Ints
    rest: int


def cut(ids: npt.NDArray[np.uint32], eot_id: int, starts: Ints) -> Cut:
    """Cut documents out of ids, with the first of which one begins.

    Args:
        ids: (ids,).
        eot_id: the end-of-text id.
        starts: where documents begin, as the format says, in (0, ids].
    """
    ends, after = bounds(ids, eot_id, starts)
    begins = np.concatenate([[0], after[:-1]])[: len(ends)]
    kept = ends > begins
    rest = int(after[-1]) if len(after) else 0
    whole = ids[:rest]
    return Cut(whole[whole != eot_id], (ends - begins)[kept], begins[kept], rest)


def bounds(ids: npt.NDArray[np.uint32], eot_id: int, starts: Ints) -> tuple[Ints, Ints]:
    """Where documents end in a stretch of ids, and where what follows each begins."""
    eots = np.flatnonzero(ids == eot_id)
    if not len(starts):
        return eots, eots + 1
    ends, after = np.concatenate([starts, eots]), np.concatenate([starts, eots + 1])
    order = np.lexsort((after, ends))
    return ends[order], after[order]


def checked(ids: Ids, options: IdOptions, *, where: str, first: int) -> npt.NDArray[np.uint32]:
    """Ids as 32 bits each.

    Args:
        ids: as they were read.
        options: tell the vocabulary.
        where: they were read, for messages.
        first: place of the first of them there.

    Raises:
        SourceError: one is outside the vocabulary.
    """
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < options.vocab_size:
        wrong = int(np.flatnonzero((ids < 0) | (ids >= options.vocab_size))[0])
        raise SourceError(
            f"{where}: id {int(ids[wrong])} at place {first + wrong:,} is outside the vocabulary "
            f"of {options.vocab_size:,} ids. Is --tokenizer the one that it was made with, and "
            "--dtype the type of its ids?"
        )
    return ids.astype(np.uint32)


def require_width(ids: Ids, *, where: str) -> None:
    """Refuse ids that are read with half of their bits, or fewer.

    Args:
        ids: as they were read, from the beginning of a file or of a shard.
        where: they were read, for messages.

    Raises:
        SourceError: all but every second, or every fourth of them are 0.
    """
    if found := wider_type(ids):
        raise SourceError(f"{where}: {found.told}. Pass --dtype {found.name}.")


def as_texts(ids: npt.NDArray[np.uint32], lengths: Ints) -> pa.LargeBinaryArray:
    """Documents of ids in the place of texts: four bytes an id, little-endian.

    Args:
        ids: of all documents.
        lengths: of each.
    """
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64) * ID_BYTES
    data = np.ascontiguousarray(ids, "<u4")
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )


class IdsAsTheyAre:
    """The engine for documents of ids, which are what they are; see `Engine`."""

    name = "none"
    reason = "the sources hold ids"

    def encode(self, texts: pa.LargeBinaryArray) -> Encoded:
        """The ids of each document."""
        data, offsets = text_buffers(texts)
        ids = np.frombuffer(data[int(offsets[0]) : int(offsets[-1])], "<u4")
        return Encoded(ids, (offsets - offsets[0]) // ID_BYTES)
