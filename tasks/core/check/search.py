"""Documents of a dataset by what they say: those that hold some words, or are a text."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import Split
from streaming_ext.format.provenance import Place
from streaming_ext.store import Storage
from tasks.core.reading.dataset_files import open_dataset, open_tokenizer
from tasks.core.reading.documents import Documents, PartOfDataset

_THREADS = 4  # a shard unpacked and its text each


def find_documents(
    storage: Storage, split: Split, text: str, *, is_all: bool, generation: str | None = None
) -> Iterator[Place]:
    """The documents of a split that hold some words, or have the ids of a text, in order.

    All shards of the split are read.

    Args:
        storage: of the dataset.
        split: that is searched.
        text: the words, letter by letter; with `is_all` the text of the document.
        is_all: whether it is all of the document.
        generation: of an extended dataset: see `DatasetFiles`.

    Raises:
        UsageError: there are no words, or there is no such split.
        NotADatasetError: there is no published dataset.
        TokenizerError: the dataset's tokenizer cannot be opened.
        CorruptDatasetError: a file is missing or damaged.
    """
    if not text and not is_all:
        raise UsageError("No words to look for were given.")
    files, manifest = open_dataset(storage, generation=generation)
    if split not in manifest.splits:
        raise UsageError(f"{storage} has no split {split!r}; it has {', '.join(manifest.splits)}.")
    tokenizer = open_tokenizer(files, manifest.spec)
    words = text.encode(errors="surrogatepass")
    ids = np.array(tokenizer.encode(text) if is_all else [], np.int64)

    def matching(documents: Documents) -> Iterator[int]:
        """Numbers of the documents of a block."""
        stream, ends, lengths = documents.stream, documents.ends.tolist(), documents.lengths
        if is_all:
            for number in np.flatnonzero(lengths == len(ids) + 1).tolist():
                if np.array_equal(stream[ends[number] - 1 - len(ids) : ends[number] - 1], ids):
                    yield number
            return
        # Most blocks hold none. Ids of other tokenizers depend on their neighbours as text.
        if tokenizer.kind == "tiktoken" and words not in tokenizer.decode_bytes(stream.tolist()):
            return
        for number, (end, length) in enumerate(zip(ends, lengths.tolist(), strict=True)):
            if words in tokenizer.decode_bytes(stream[end - length : end - 1].tolist()):
                yield number

    def search(part: int) -> list[Place]:
        opened = PartOfDataset(storage, manifest, part)
        return [
            origins.places.of(int(origins.rows[number]), int(origins.sources[number]))
            for block in opened.documents(split, origins=True)
            if (origins := block.origins) is not None
            for number in matching(block)
        ]

    return _each(search, len(manifest.parts))


def _each(search: Callable[[int], list[Place]], parts: int) -> Iterator[Place]:
    with ThreadPoolExecutor(_THREADS) as threads:
        try:
            for places in threads.map(search, range(parts)):
                yield from places
        finally:  # cancels what nobody wants any more
            threads.shutdown(wait=False, cancel_futures=True)
