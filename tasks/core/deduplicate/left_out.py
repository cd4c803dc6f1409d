"""What a part of the second stage leaves out as copies, and the list of it on scratch."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.deduplicated.duplicates import Duplicates, duplicates_path, table_of
from streaming_ext.dataset.shuffled.keys import Ints
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import CorruptDatasetError
from tasks.core.deduplicate.drops import Drops


class CopiesLeftOut:
    """Told of all documents of a part, it says which of them stay.

    Attributes:
        documents, tokens: that were left out, with one end-of-text id a document.
    """

    def __init__(self, drops: Drops, part: int, spec: DatasetSpec) -> None:
        """Begin with none.

        Args:
            drops: of the part; none where copies are not looked for.
            part: its number.
            spec: of the dataset.
        """
        self._drops, self._part, self._spec = drops, part, spec
        self._found: list[Duplicates] = []
        self.documents = self.tokens = 0

    def stay(self, groups: Ints, rows: Ints, lengths: Ints) -> npt.NDArray[np.bool_]:
        """Whether each document stays, (documents,); see `Drops` for the words.

        Args:
            groups, rows: of the documents, in the order of the part.
            lengths: their tokens, without end-of-text ids.
        """
        if not len(self._drops):
            return np.ones(len(rows), np.bool_)
        index = self._drops.find(groups, rows)
        stay: npt.NDArray[np.bool_] = index < 0
        gone = ~stay
        self._found.append(
            Duplicates(
                groups=groups[gone],
                rows=rows[gone],
                tokens=lengths[gone],
                first_groups=self._drops.first_groups[index[gone]],
                first_rows=self._drops.first_rows[index[gone]],
            )
        )
        self.documents += int(gone.sum())
        self.tokens += int((lengths[gone] + 1).sum())
        return stay

    def finish(self, folder: Path) -> None:
        """Write the list of what was left out, where copies are looked for.

        Raises:
            CorruptDatasetError: something was to be left out that the part does not hold.
        """
        if self.documents != len(self._drops):
            raise CorruptDatasetError(
                f"part {self._part:05}: {self.documents} documents of {len(self._drops)} that were "
                "to be left out are there: something changed the folder shuffle of the output. "
                "Remove that folder and run the same command again."
            )
        if self._spec.deduplicate is None:
            return
        file = folder / duplicates_path(self._part)
        file.parent.mkdir(parents=True, exist_ok=True)
        shuffled = self._spec.shuffle is not None
        file.write_bytes(table_of(Duplicates.joined(self._found), shuffled=shuffled))
