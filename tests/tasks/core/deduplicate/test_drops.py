"""Looking documents up among those that are left out."""

import numpy as np

from tasks.core.deduplicate.drops import Drops


def test_found_in_any_order() -> None:
    keys = np.array([7, 7, 1], np.uint64)
    drops = Drops(keys, np.array([2, 1, 3]), np.array([5, 6, 7]), *np.array([[0, 0, 1], [9, 8, 7]]))
    assert drops.groups.tolist() == [3, 1, 2]  # by key, then in the order of the sources
    found = drops.find(np.array([1, 2, 3, 3, 0]), np.array([6, 5, 8, 7, 6]))
    assert found.tolist() == [1, 2, -1, 0, -1]
    assert drops.first_rows[found[:2]].tolist() == [8, 9]
    assert Drops.joined([]).find(np.array([1]), np.array([2])).tolist() == [-1]


def test_many_of_one_part() -> None:
    """Where all keys are the same, a walk from one to the next would take minutes."""
    rows = np.arange(2**18)
    none = np.zeros(len(rows), np.int64)
    drops = Drops(none.astype(np.uint64), none, rows * 2, none, none)
    found = drops.find(none, rows)
    assert (found >= 0).tolist() == (rows % 2 == 0).tolist()
