"""The faults and their times: drawn from a seed, all along the work, each kind in each round.

The clock is the work itself, in source files that are recorded: a slower machine meets the same
faults at the same places.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

WORKER, RUN, SLOW, CUT = "worker killed", "run killed", "503 SlowDown", "connections cut"
FULL, S3, PREFECT = "scratch full", "S3 restarted", "Prefect restarted"
KINDS = (WORKER, RUN, SLOW, CUT, FULL, S3, PREFECT)
OFTEN = (WORKER, SLOW, CUT)  # twice a round: they cost little
ENDING = (RUN, FULL, S3, PREFECT)  # after these the command may have to be given again
_SPAN = (0.02, 0.9)  # of the files
_LAST = 12  # files that no fault waits for: they are in hand together and end nearly at once


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, and the number of recorded files from which on it may strike."""

    kind: str
    at: int


def draw(files: int, rounds: int, kinds: Sequence[str], rng: random.Random) -> list[Fault]:
    """The faults of so many rounds, in the order in which they strike."""
    drawn: list[str] = []
    for _ in range(rounds):
        deck = [*kinds, *(kind for kind in OFTEN if kind in kinds)]
        rng.shuffle(deck)
        drawn += deck
    first, last = (files * part for part in _SPAN)
    last = max(first, min(last, files - _LAST))
    moments = sorted(int(rng.uniform(first, last)) for _ in drawn)
    return [Fault(kind, at) for kind, at in zip(drawn, moments, strict=True)]
