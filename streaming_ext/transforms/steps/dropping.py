"""Steps that leave samples out: what is said where nothing else ever comes.

A source that begins anew for ever gives the same samples again, so once a whole pass of it was left
out, all that follow will be. Of a source that says nothing of passes, nobody can know: then a
warning names the step.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from streaming_ext.errors import UsageError
from streaming_ext.transforms.block import Block
from streaming_ext.transforms.flow import Flow, Opening, Passes, Source, Through

_log = logging.getLogger(__name__)
MANY: Final = 100_000  # samples left out in a row, of which there is a warning
_SOME: Final = 1024  # samples looked at together


@dataclass(slots=True)
class Dropping:
    """Watches one step of a worker.

    Attributes:
        step: what messages call it.
        source: of the samples.
        opening: of the source.
        keep: those of some samples that are not left out, or what is made of them.
    """

    step: str
    source: Source
    opening: Opening
    keep: Callable[[Block], Block]
    _since: Passes = field(default=Passes(0, 0), init=False)  # when a sample came last
    _count: int = field(default=0, init=False)
    _begun: bool = field(default=False, init=False)

    def is_all(self, taken: int, given: int, passes: Passes) -> bool:
        """Note what became of some samples; whether this worker has no other ones any more.

        Args:
            taken: how many there were.
            given: how many are left.
            passes: of the source, behind them.

        Raises:
            UsageError: no worker has.
        """
        if given or not self._begun:
            self._begun, self._since = True, passes
        if given:
            self._count = 0
            return False
        if self._count < MANY <= self._count + taken:
            _log.warning(
                "%s left out the last %s samples, all that came. Where the source has no end, none "
                "may ever come: look at what is kept.", self.step, f"{MANY:,}",
            )  # fmt: skip
        self._count += taken
        # Each pass deals the samples out to the workers anew: so many, until one has seen all.
        workers = self.opening.share[1]
        if passes.least - self._since.most <= workers:
            return False
        if self._others_have_any():
            return True
        raise UsageError(
            f"{self.step} left out every sample of a whole pass, and the source repeats them for "
            "ever: no other one would come. Look at what is kept, or leave out repeat."
        )

    def _others_have_any(self) -> bool:
        """Whether a worker other than this one has a sample; reads on until one is found."""
        own, workers = self.opening.share
        for number in range(workers):
            if number == own:
                continue
            flow = self.source.open(replace(self.opening, share=(number, workers)), None)
            with closing(flow):
                while flow.passes().least <= workers and (block := flow.pull(_SOME)) is not None:
                    if len(block) and len(self.keep(block)):
                        return True
        return False


class DroppingFlow(Through):
    """A function of blocks that leaves samples out."""

    def __init__(self, flow: Flow, dropping: Dropping) -> None:
        """Watch it.

        Args:
            flow: of the source.
            dropping: with the function.
        """
        super().__init__(flow)
        self._dropping = dropping
        self._ended = False

    def pull(self, most: int) -> Block | None:
        """See `Flow.pull`."""
        block = None if self._ended else self.source.pull(most)
        if block is None:
            return None
        made = self._dropping.keep(block) if len(block) else block
        self._ended = self._dropping.is_all(len(block), len(made), self.source.passes())
        return made
