"""The samples of all workers, so many of each in turn: what one of them makes of that.

A chain is dealt out to *shares*, each of which has samples of its own; at the beginning there is
one share a worker. Fewer workers go on in several shares each, in the same turns. Of shares 0 to 3,
two workers make

    worker 0: 0 2 0 2      worker 1: 1 3 1 3
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming_ext.transforms.checkpointable import CheckpointableDataset


@dataclass(frozen=True, slots=True)
class Turn:
    """Some samples of a share; none where it is at its end.

    Attributes:
        share: its number.
        samples: in order.
        state: before the first one; `skip` more of it are the states behind it.
    """

    share: int
    samples: Any
    state: dict[str, Any]


def turns_of(
    dataset: "CheckpointableDataset", state: Mapping[str, Any], *, worker: int, workers: int
) -> Iterator[Turn]:
    """The turns of one worker, until all of its shares are at their end.

    Args:
        dataset: the chain.
        state: of a loader; how many workers there are divides its number of shares.
        worker: number of this worker; 0 has the first turn.
        workers: how many there are.
    """
    shares = len(state["states"])
    mine = [(state["next"] + number) % shares for number in range(worker, shares, workers)]
    # The share whose turn it is gives the rest of the samples that were in hand.
    count = state["in_message"] - (state["used"] if worker == 0 else 0)
    ended: set[int] = set()
    with ExitStack() as stack:
        flows = [stack.enter_context(dataset.iter_share((share, shares), state["states"][share]))
                 for share in mine]  # fmt: skip
        while True:
            for share, samples in zip(mine, flows, strict=True):
                here = samples.here()
                some = list(islice(samples, count))
                count = state["in_message"]
                if not some:
                    ended.add(share)
                    if len(ended) == len(mine):
                        return
                yield Turn(share, some, samples.told(here))
