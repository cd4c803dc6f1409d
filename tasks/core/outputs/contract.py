"""What writes the shards of a part: an output, fed with whole documents, a split at a time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.layout import Split
from streaming_ext.dataset.record import SplitPart
from streaming_ext.dataset.spec import DatasetSpec


@dataclass(slots=True)
class Memory:
    """Memory that one split of part after part is packed in: fresh pages take time.

    What was never written to is no memory yet: a holdout of few documents takes little.

    Attributes:
        data: of any content, uint8 (bytes,).
    """

    data: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))


Memories = dict[Split, Memory]


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
