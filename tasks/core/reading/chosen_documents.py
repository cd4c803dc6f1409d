"""Some documents of a part's split, read from the shards that hold them and from no others."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.layout import Split
from streaming_ext.dataset.record import PartRecord
from streaming_ext.errors import CorruptDatasetError
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.reading.opened import naming
from tasks.core.reading.shard_tokens import Ids, behind, read_tokens
from tasks.core.reading.whole_documents import Documents, Ints


def chosen_documents(
    files: DatasetFiles,
    record: PartRecord,
    split: Split,
    lengths: Ints,
    taken: npt.NDArray[np.bool_],
) -> Iterator[Documents]:
    """Documents of a split in their order, a shard's worth at a time.

    Args:
        files: of the dataset.
        record: of the part.
        split: which one.
        lengths: tokens of each of its documents, without end-of-text ids, (documents,).
        taken: which of them, (documents,).

    Raises:
        CorruptDatasetError: a shard is missing or damaged, or the documents do not end there.
    """
    spec, eot_id = record.spec, record.spec.tokenizer.eot_id
    # starts, ends: (taken,), where each begins and ends in the token stream of the split
    ends = np.cumsum(lengths + 1)
    starts = (ends - lengths - 1)[taken]
    ends = ends[taken]
    begun: list[Ids] = []  # of a document that ends in a later shard
    first = 0
    for shard in record.splits[split].shards:
        after = first + shard.samples * spec.sequence_length
        here = slice(
            int(np.searchsorted(ends, first, side="right")), int(np.searchsorted(starts, after))
        )
        if here.start < here.stop:
            with naming(files, f"{split}/{shard.name}"):
                ids = read_tokens(files, split, shard, spec).reshape(-1)
            # turns: (tokens of the shard + 1,), 1 where taken ids begin, -1 behind them
            turns = np.zeros(len(ids) + 1, np.int8)
            np.add.at(turns, np.maximum(starts[here] - first, 0), 1)
            np.add.at(turns, np.minimum(ends[here], after) - first, -1)
            begun.append(ids[np.cumsum(turns[:-1]).astype(bool)])
            whole = ends[here] <= after
            sizes = (ends[here] - starts[here])[whole]
            stream = np.concatenate(begun)
            cut = int(sizes.sum())
            begun = [stream[cut:]] if cut < len(stream) else []
            if len(sizes):
                with naming(files, record.documents.path):
                    if not np.array_equal(behind(stream[:cut], eot_id), np.cumsum(sizes)):
                        raise CorruptDatasetError(f"documents of {split} do not end where it says")
                yield Documents(stream[:cut], np.cumsum(sizes))
        first = after
