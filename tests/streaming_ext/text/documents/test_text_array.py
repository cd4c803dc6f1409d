"""Look-ups are those of NumPy, whichever library makes them."""

import numpy as np
import pytest

from streaming_ext.text.documents.text_array import _FEW, taken


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64, np.int64])
@pytest.mark.parametrize("count", [0, 1, _FEW - 1, _FEW, _FEW + 1])
def test_taken_values_are_those_at_the_positions(count: int, dtype: type) -> None:
    values = np.arange(300).astype(dtype)
    positions = np.random.default_rng(count).integers(0, len(values), count).astype(np.uint32)
    found = taken(values, positions)
    assert found.dtype == dtype
    assert found.tolist() == values[positions].tolist()
