"""Texts that older generations of a dataset hold, looked for by hash: all files, one at a time."""

from dataclasses import dataclass

import numpy as np

from streaming_ext.dataset.deduplicated.digests import Digests, Keys, read_digests
from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.manifest import KeptDigests
from streaming_ext.dataset.shuffled.keys import KEY_BITS
from streaming_ext.errors import CorruptDatasetError
from tasks.core.storage import Storage


@dataclass(frozen=True, slots=True)
class OlderTexts:
    """What the generations hold that a run extends.

    Attributes:
        storage: the dataset's.
        generations: hashes of what each added, the oldest first.
        shuffled: whether the dataset is.
    """

    storage: Storage
    generations: tuple[KeptDigests, ...]
    shuffled: bool

    def among(self, wanted: Keys, start: int, end: int) -> Digests:
        """Those of them whose hashes begin as one that is wanted does.

        Memory goes with what is found.

        Args:
            wanted: upper halves of hashes in [start, end), ascending, (documents,).
            start, end: the range.

        Raises:
            StorageError: a file cannot be read.
            CorruptDatasetError: a file is gone or damaged.
        """
        found = []
        for each in self.generations:
            count = len(each.files)
            # file i of n holds the hashes from i / n of all on
            first, last = (count * start) >> KEY_BITS, -((-count * end) >> KEY_BITS)
            for number in range(first, min(last, count)):
                for batch in read_digests(self._read(each, number), shuffled=self.shuffled):
                    at = np.searchsorted(wanted, batch.high)
                    same = at < len(wanted)
                    same[same] = wanted[at[same]] == batch.high[same]
                    found.append(batch.chosen(same))
        return Digests.joined(found)

    def _read(self, generation: KeptDigests, number: int) -> bytes:
        file = generation.files[number]
        try:
            data = self.storage.read(file.path)
        except FileNotFoundError as error:
            raise _damaged(self.storage, file.path) from error
        if content_hash(data) != file.xxh128:
            raise _damaged(self.storage, file.path)
        return data


def _damaged(storage: Storage, path: str) -> CorruptDatasetError:
    return CorruptDatasetError(
        f"{storage}/{path} is gone or damaged: without it nothing tells which texts the dataset "
        "holds. Put it back from a copy of the dataset."
    )
