"""The steps of one worker, in blocks that are planned at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Steps that are alike, and how many of them a block holds."""

    steps: range
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """The blocks of one worker, which takes each `num_workers`-th; none is of two runs.

    Attributes:
        runs: the steps of all workers.
        worker: number of this worker.
        num_workers: how many share the blocks.
    """

    runs: Sequence[Run]
    worker: int = 0
    num_workers: int = 1

    def __iter__(self) -> Iterator[range]:
        """Each block as a range of steps."""
        before = 0  # blocks of all workers
        for run in self.runs:
            count = -(-len(run.steps) // run.size)
            for number in range((self.worker - before) % self.num_workers, count, self.num_workers):
                yield run.steps[number * run.size : (number + 1) * run.size]
            before += count


@dataclass(frozen=True, kw_only=True, slots=True)
class StepsInTurn:
    """The steps of one worker where they are dealt out singly, as a plain DataLoader collects them.

    Attributes:
        steps: of all workers.
        size: steps a block.
        worker: number of this worker.
        num_workers: how many share the steps.
        first: steps of this worker to leave out at the beginning.
    """

    steps: int
    size: int
    worker: int
    num_workers: int
    first: int

    @property
    def own_steps(self) -> int:
        """Steps of this worker, with those left out."""
        return len(range(self.worker, self.steps, self.num_workers))

    def __iter__(self) -> Iterator[range]:
        """Each block as a range of steps."""
        own = range(self.worker, self.steps, self.num_workers)[self.first :]
        for begin in range(0, len(own), self.size):
            yield own[begin : begin + self.size]
