"""Checking a part's token stream of one split: ids, document ends, padding, and their lengths."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.shard import TokenArray
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import CorruptDatasetError

_BLOCK_TOKENS = 2**18  # their ids stay in a core's cache; positions of all of them take little


class ExpectedLengths:
    """Document lengths from batches of any size, handed out in any number."""

    def __init__(self, batches: Iterator[npt.NDArray[np.int64]]) -> None:
        self._batches = batches
        self._rest = np.empty(0, np.int64)

    def take(self, count: int) -> npt.NDArray[np.int64]:
        """The next `count` lengths, fewer where the file ends."""
        taken = []
        while count:
            if not len(self._rest):
                batch = next(self._batches, None)
                if batch is None:
                    break
                self._rest = batch
            piece, self._rest = self._rest[:count], self._rest[count:]
            taken.append(piece)
            count -= len(piece)
        return np.concatenate(taken) if taken else np.empty(0, np.int64)


class StreamCheck:
    """Goes over the shards of a split of a part, in order, in bounded memory.

    Attributes:
        documents, tokens, padding: counted so far; a trailing run of end-of-text ids is padding
            for as long as nothing follows it.
        difference: the first document whose length is not the expected one, in words, and the
            shard that it ends in.
        problems: what is wrong with a shard by itself, as (shard, words).
    """

    def __init__(
        self, spec: DatasetSpec, expected: ExpectedLengths | None, *, begun: bool = False
    ) -> None:
        """Start a stream, or one of which the beginning is not to be had (`begun`)."""
        self._spec = spec
        self._expected = expected
        self._seen = 0  # tokens of all shards so far
        self._last_end = -2 if begun else -1  # position of the last end-of-text id
        self._shard = ""
        self.documents = 0
        self.padding = 0
        self.difference: tuple[str, str] | None = None
        self.unreadable: CorruptDatasetError | None = None
        self.problems: list[tuple[str, str]] = []

    @property
    def tokens(self) -> int:
        """Tokens so far, padding left out."""
        return self._seen - self.padding

    def add(self, shard: str, samples: TokenArray) -> None:
        """Look at the next shard; `samples` is of shape (samples, sequence_length)."""
        self._shard = shard
        kinds: set[str] = set()
        # flat: (samples * sequence_length,)
        flat = samples.reshape(-1)
        for start in range(0, len(flat), _BLOCK_TOKENS):
            block = flat[start : start + _BLOCK_TOKENS]
            for kind, position, words in self._look_at(block):
                if kind not in kinds:  # one of a kind tells enough
                    kinds.add(kind)
                    self._problem(start + position, words)

    def finish(self) -> None:
        """Look at how the stream ends; the last shard is in."""
        length = self._spec.sequence_length
        if self._last_end != self._seen - 1:
            words = "the last document does not end in an end-of-text id"
            self.problems.append((self._shard, words))
        elif self.padding >= length:
            words = f"{self.padding} ids of padding, expected less than a sample of {length}"
            self.problems.append((self._shard, words))

    def _look_at(self, block: TokenArray) -> Iterator[tuple[str, int, str]]:
        vocab_size, eot_id = self._spec.tokenizer.vocab_size, self._spec.tokenizer.eot_id
        if int(block.max()) >= vocab_size:
            position = int(np.flatnonzero(block >= vocab_size)[0])
            yield (
                "vocabulary",
                position,
                (f"id {int(block[position])}, expected ids below {vocab_size}"),
            )
        ends = np.flatnonzero(block == eot_id)
        # lengths: (ends,), of what stands between two ends
        lengths = np.diff(ends + self._seen, prepend=self._last_end) - 1
        filled = np.flatnonzero(lengths)
        open_end = not len(ends) or int(ends[-1]) != len(block) - 1
        trailing = len(lengths) - (int(filled[-1]) + 1 if len(filled) else 0)
        before = self.padding  # ids of what looked like padding when the last block ended
        self.padding = trailing if len(filled) else before + trailing
        inside = len(lengths) - len(filled) - trailing + (before if len(filled) else 0)
        if open_end and self.padding:
            inside, self.padding = inside + self.padding, 0
        if inside:
            zeros = np.flatnonzero(lengths == 0)
            position = int(ends[zeros[0]]) if len(zeros) else 0
            yield (
                "empty",
                position,
                (
                    "an end-of-text id follows another before the end of the stream: padding or an "
                    "empty document, of which there are none"
                ),
            )
        self._compare(lengths[filled])
        self.documents += len(filled)
        if len(ends):
            self._last_end = int(ends[-1]) + self._seen
        self._seen += len(block)

    def _compare(self, lengths: npt.NDArray[np.int64]) -> None:
        if self._expected is None or self.difference is not None:
            return
        try:
            expected = self._expected.take(len(lengths))
        except CorruptDatasetError as error:
            self.unreadable, self._expected = error, None
            return
        different = np.flatnonzero(lengths[: len(expected)] != expected)
        index = int(different[0]) if len(different) else len(expected)
        if index < len(lengths):
            in_list = f"{int(expected[index])} in" if index < len(expected) else "and is not in"
            words = f"document {self.documents + index} of the split has {int(lengths[index])}"
            self.difference = self._shard, f"{words} tokens in {self._shard}, {in_list} the list"

    def _problem(self, position: int, words: str) -> None:
        sample, token = divmod(position, self._spec.sequence_length)
        self.problems.append((self._shard, f"sample {sample}, token {token}: {words}"))
