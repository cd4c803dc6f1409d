"""What tests of packed rows have in common."""

from collections.abc import Callable

from streaming_ext import StreamingTokenDataset
from tests.streaming_ext.build import EOT, Built

Open = Callable[..., StreamingTokenDataset]
MASKS = ["targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen", "starts_inside"]
LENGTH = 16


def documents_of(built: Built, split: str = "train") -> list[list[int]]:
    """The documents of a split, end-of-text ids with them."""
    documents: list[list[int]] = [[]]
    for token in built.streams[split].tolist():
        documents[-1].append(token)
        if token == EOT:
            documents.append([])
    return [each for each in documents if len(each) > 1]
