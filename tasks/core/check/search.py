"""Documents of a dataset by what they say: those that hold some words, or are a text."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import Split
from streaming_ext.format.provenance import Place
from streaming_ext.store import Storage
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.reading.dataset_files import open_dataset, open_tokenizer
from tasks.core.reading.documents import Documents, Ids, PartOfDataset

_THREADS = 4  # a shard unpacked and its text each
# Numbers of the documents of a block that are wanted.
_Chosen = Callable[[Documents], list[int]]


def documents_that_hold(
    storage: Storage, split: Split, words: str, *, generation: str | None = None
) -> Iterator[Place]:
    """The documents whose text holds some words, letter by letter, in the order of the dataset.

    All shards of the split are read, and their ids turned back into text.

    Args:
        storage: where the dataset lies.
        split: that is looked through.
        words: that the text holds.
        generation: of an extended dataset: see `DatasetFiles`.

    Raises:
        UsageError: there are no words, or there is no such split.
        NotADatasetError: there is no published dataset at this place.
        TokenizerError: the dataset's tokenizer cannot be opened.
        CorruptDatasetError: a file is missing or damaged.
    """
    if not words:
        raise UsageError("No words to look for were given.")
    wanted = words.encode(errors="surrogatepass")

    def choose(tokenizer: Tokenizer) -> _Chosen:
        def holds(ids: Ids) -> bool:
            return wanted in tokenizer.decode_bytes(ids.tolist())

        def chosen(documents: Documents) -> list[int]:
            # Most blocks hold none. Ids of other tokenizers depend on their neighbours as text.
            if tokenizer.kind == "tiktoken" and not holds(documents.stream):
                return []
            return [number for number, ids in enumerate(_each(documents)) if holds(ids)]

        return chosen

    return _places(storage, split, choose, generation)


def documents_that_are(
    storage: Storage, split: Split, text: str, *, generation: str | None = None
) -> Iterator[Place]:
    """The documents that have the ids of a text, in the order of the dataset.

    Args:
        storage: where the dataset lies.
        split: that is looked through.
        text: all of the document.
        generation: of an extended dataset: see `DatasetFiles`.

    Raises:
        UsageError: there is no such split.
        NotADatasetError: there is no published dataset at this place.
        TokenizerError: the dataset's tokenizer cannot be opened.
        CorruptDatasetError: a file is missing or damaged.
    """

    def choose(tokenizer: Tokenizer) -> _Chosen:
        wanted = np.array(tokenizer.encode(text), np.int64)

        def chosen(documents: Documents) -> list[int]:
            lengths, found = documents.lengths, []
            for number in np.flatnonzero(lengths == len(wanted) + 1).tolist():
                end = int(documents.ends[number]) - 1
                if np.array_equal(documents.stream[end - len(wanted) : end], wanted):
                    found.append(number)
            return found

        return chosen

    return _places(storage, split, choose, generation)


def _each(documents: Documents) -> Iterator[Ids]:
    """The ids of each document, without its end-of-text id."""
    begin = 0
    for end in documents.ends.tolist():
        yield documents.stream[begin : end - 1]
        begin = end


def _places(
    storage: Storage,
    split: Split,
    choose: Callable[[Tokenizer], _Chosen],
    generation: str | None,
) -> Iterator[Place]:
    files, manifest = open_dataset(storage, generation=generation)
    if split not in manifest.splits:
        raise UsageError(f"{storage} has no split {split!r}; it has {', '.join(manifest.splits)}.")
    chosen = choose(open_tokenizer(files, manifest.spec))

    def search(part: int) -> list[Place]:
        opened = PartOfDataset(storage, manifest, part)
        places: list[Place] = []
        for block in opened.documents(split, origins=True):
            found = block.origins
            assert found is not None  # noqa: S101  (asked for)
            places += [
                found.places.of(int(found.rows[number]), int(found.sources[number]))
                for number in chosen(block)
            ]
        return places

    with ThreadPoolExecutor(_THREADS) as threads:
        try:
            for places in threads.map(search, range(len(manifest.parts))):
                yield from places
        finally:  # of those that are not wanted any more
            threads.shutdown(wait=False, cancel_futures=True)
