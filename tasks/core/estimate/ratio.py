"""From a sample to a total and how sure it is: the ratio estimate of Cochran, Sampling Techniques.

Files are drawn, not documents: what was counted in a file is taken as a ratio to the file's size,
which is known of all files. The interval comes from how much these ratios differ.
"""

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

# Student's t for an interval of 95%, by degrees of freedom from 1; the last for all above.
_T = (12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27, 2.23, 2.21, 2.18, 2.17, 2.15, 2.14)
_ALL = 1 - 1e-9  # summed in floating point


class Quantity(BaseModel):
    """An estimate and its 95% interval, for the error of sampling alone.

    Attributes:
        value: the estimate.
        error: half the width of the interval, relative to the value; None where the sample is too
            small to tell.
    """

    model_config = ConfigDict(frozen=True)

    value: float
    error: float | None

    def times(self, factor: float) -> "Quantity":
        """The same of so much more."""
        return Quantity(value=self.value * factor, error=self.error)


def ratio(counts: Sequence[float], sizes: Sequence[float], *, read: float) -> Quantity:
    """Counts per unit of size, over all that a sample was drawn from.

    Args:
        counts: of each that was drawn.
        sizes: of each that was drawn.
        read: how much of the whole was read, in [0, 1].
    """
    count, size = np.asarray(counts, float), np.asarray(sizes, float)
    value = float(count.sum() / size.sum())
    drawn = len(size)
    if read >= _ALL or not value:
        return Quantity(value=value, error=0.0)
    if drawn == 1:
        return Quantity(value=value, error=None)
    residuals = count - value * size
    variance = (1 - read) * drawn * float((residuals**2).sum()) / (drawn - 1)
    deviation = variance**0.5 / float(size.sum())
    return Quantity(value=value, error=_T[min(drawn - 1, len(_T)) - 1] * deviation / value)
