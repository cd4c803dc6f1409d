"""From where on a source must be read again, for what a step holds back.

Units are tokens or samples. Blocks of 10, 10 and 10 units, of which 12 were used: the second block
begins where reading has to, and 2 of its units were used.
"""

from collections import deque

from streaming_ext.transforms.flow import State


class Places:
    """Where the blocks begin that are not used up."""

    def __init__(self, begin: State, skip: int) -> None:
        """Begin at a place, with so many units behind it that were used before."""
        self._begins: deque[tuple[int, State]] = deque([(0, begin)])
        self.used, self.read = skip, 0  # units behind the first place

    @property
    def skip(self) -> int:
        """Units of the next block that were used before, if it has so many."""
        return max(0, self.used - self.read)

    def add(self, begin: State, units: int) -> None:
        """A block was read that begins there."""
        if self._begins[-1][0] == self.read:
            self._begins.pop()
        self._begins.append((self.read, begin))
        self.read += units

    def use(self, units: int) -> None:
        """So many units behind the first place were used, in all."""
        self.used = max(self.used, units)
        while len(self._begins) > 1 and self._begins[1][0] <= self.used:
            self._begins.popleft()

    def state(self, now: State) -> dict[str, object]:
        """Where to begin, and how many units to read over; `now` is where the source stands."""
        if self.used == self.read:
            return {"source": now, "skip": 0}
        first, begin = self._begins[0]
        return {"source": begin, "skip": self.used - first}
