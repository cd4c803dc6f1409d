"""Where an epoch stands between two steps."""

from dataclasses import dataclass

from streaming_ext.sampler.grown.grown_pass import Growth
from streaming_ext.sampler.past import Past


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A place between two steps.

    Attributes:
        epoch: number of the epoch, from 0.
        place: places of the epoch that lie behind.
        before: draws of each stream before this epoch.
        missed: those of them that never came: passes before an extension were shorter.
        tokens: of training before this epoch, of all streams it ever had.
        grown: of a dataset that was extended during this pass.
        past: of an epoch in which settings were changed.
    """

    epoch: int
    place: int
    before: tuple[int, ...]
    missed: tuple[int, ...]
    tokens: int = 0
    grown: Growth | None = None
    past: Past | None = None
