"""What writes the shards of a part: an output, fed with whole documents, a split at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.record import SplitPart
from streaming_ext.dataset.spec import DatasetSpec
from tasks.core.memories import Memory


class SplitWriter(Protocol):
    """One split of one part, open for writing below a folder of scratch."""

    def add(
        self,
        stream: npt.NDArray[Any],
        rows: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> None:
        """Append whole documents, in the order of the source.

        Args:
            stream: their ids, an end-of-text id behind each, (tokens,).
            rows: their rows in the source file, (documents,).
            lengths: their tokens, without end-of-text ids, (documents,).
        """
        ...

    def finish(self) -> SplitPart:
        """Write what is left, and say what there is."""
        ...


# The split's folder on scratch, the number of the part, what decides the bytes, and memory to use.
OpenSplit = Callable[[Path, int, DatasetSpec, Memory], SplitWriter]
