"""Memory that a worker uses for part after part: fresh pages take as long as what fills them."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.layout import Split


@dataclass(slots=True)
class Memory:
    """Memory that one split of part after part is packed in, or read into.

    What was never written to is no memory yet: a holdout of few documents takes little.

    Attributes:
        data: of any content, uint8 (bytes,).
    """

    data: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))

    def of(self, size: int) -> npt.NDArray[np.uint8]:
        """So much of it, whose content is to be given up: (size,)."""
        if len(self.data) < size:
            self.data = np.empty(size, np.uint8)
        return self.data[:size]


Memories = dict[Split, Memory]
