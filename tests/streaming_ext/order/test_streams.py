"""How much of an epoch each stream makes."""

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.training.streams import TokenStream, sequences_an_epoch


def streams(**values) -> list[TokenStream]:
    ((name, amounts),) = values.items()
    return [TokenStream(local="x", **{name: amount}) for amount in amounts]


@pytest.mark.parametrize(
    ("proportions", "epoch_size", "expected"),
    [([3, 1], 100, [75, 25]), ([0.7, 0.2, 0.1], 1000, [700, 200, 100]), ([1, 1, 1], 100, None),
     ([1, 1], None, [15, 15])],
)  # fmt: skip
def test_proportions(proportions, epoch_size, expected) -> None:
    found = sequences_an_epoch(streams(proportion=proportions), [10, 20, 5][: len(proportions)],
                               epoch_size=epoch_size)  # fmt: skip
    assert sum(found) == (epoch_size or 30)
    assert found == expected or sorted(found) == [33, 33, 34]


def test_amounts() -> None:
    assert sequences_an_epoch(streams(repeat=[0.5, 2]), [10, 20], epoch_size=None) == [5, 40]
    assert sequences_an_epoch(streams(choose=[7, 9]), [10, 20], epoch_size=16) == [7, 9]
    assert sequences_an_epoch([TokenStream(local="x")], [10], epoch_size=None) == [10]
    assert sequences_an_epoch([TokenStream(local="x")], [10], epoch_size=99) == [99]


def test_contradictions_are_refused() -> None:
    with pytest.raises(UsageError, match="one of proportion"):
        TokenStream(local="x", proportion=1, choose=3)
    with pytest.raises(UsageError, match="`repeat` must be a number above 0"):
        TokenStream(local="x", repeat=0)
    with pytest.raises(UsageError, match="all of them one, or none"):
        sequences_an_epoch([*streams(proportion=[1]), TokenStream(local="x")], [1, 1], epoch_size=4)
    with pytest.raises(UsageError, match="give 16 sequences"):
        sequences_an_epoch(streams(choose=[7, 9]), [10, 20], epoch_size=17)
