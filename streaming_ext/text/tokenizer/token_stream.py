"""The token stream of a batch of documents, and checks of the ids."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.errors import TokenizerError
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.tokenizer.engine import Encoded
from streaming_ext.text.tokenizer.tokenizer import Tokenizer

_AUDIT_DOCUMENT_BYTES = 2**17  # longer documents are left out of the audit


def stream_of(
    encoded: Encoded,
    lengths: npt.NDArray[np.int64],
    kept: npt.NDArray[np.bool_],
    dtype: str,
    eot_id: int,
) -> npt.NDArray[Any]:
    """The ids of the documents that are kept, each followed by one end-of-text id."""
    ids, ends = encoded.ids, encoded.offsets[1:][kept]
    if not kept.all() and (lengths[~kept] > 0).any():
        ids, ends = ids[np.repeat(kept, lengths)], np.cumsum(lengths[kept])
    # like np.insert, without a copy of all ids in the other type: a document may be large
    stream = np.empty(len(ids) + len(ends), dtype)
    of_text = np.ones(len(stream), bool)
    of_text[ends + np.arange(len(ends))] = False
    stream[of_text] = ids
    stream[~of_text] = eot_id
    return stream


def check_ids(
    encoded: Encoded,
    tokenizer: Tokenizer,
    *,
    place: Callable[[int], tuple[str, str]],
    where: str,
) -> None:
    """Refuse ids outside the vocabulary, and a text that gives the end-of-text id.

    Args:
        encoded: the ids of some documents.
        tokenizer: theirs.
        place: file and row of a document, for people.
        where: name of the part in messages.

    Raises:
        TokenizerError: naming the document.
    """
    if len(encoded.ids) == 0:
        return
    if int(encoded.ids.max()) >= tokenizer.vocab_size:
        raise TokenizerError(
            f"{where}: id {int(encoded.ids.max())} is outside the vocabulary of "
            f"{tokenizer.vocab_size} ids of {tokenizer.name}."
        )
    ends = np.flatnonzero(encoded.ids == tokenizer.eot_id)
    if len(ends):
        document = int(np.searchsorted(encoded.offsets, ends[0], side="right")) - 1
        url, row = place(document)
        raise TokenizerError(
            f"{url}: the text of {row} gives the end-of-text id "
            f"{tokenizer.eot_id}, so documents could not be told apart. Pass another --eot-token."
        )


def rows_to_audit(
    hashes: npt.NDArray[np.uint64], texts: pa.LargeStringArray, *, num_bytes: int
) -> list[int]:
    """The documents with the smallest hashes, `num_bytes` in all: the same sample in every run."""
    sizes = np.diff(text_buffers(texts)[1])
    candidates = np.flatnonzero(sizes <= _AUDIT_DOCUMENT_BYTES)
    ordered = candidates[np.argsort(hashes[candidates], kind="stable")]
    taken = int(np.searchsorted(np.cumsum(sizes[ordered]), num_bytes)) + 1
    return [int(row) for row in ordered[:taken]]
