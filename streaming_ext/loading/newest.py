"""Of several iterations of a loader the newest alone goes on: they share an account of training."""

from typing import Final

from streaming_ext.errors import UsageError

_OLDER: Final = (
    "A newer iteration of this {what} began, and both count as one training: this one cannot go "
    "on. Finish with one iterator before the next, or make a {what} for each."
)


class Newest:
    """Which iteration is the newest."""

    def __init__(self, what: str) -> None:
        """Of a loader or a dataset, as users call it."""
        self._what, self._number = what, 0

    def begin(self) -> int:
        """Number of an iteration that begins."""
        self._number += 1
        return self._number

    def require(self, number: int) -> None:
        """Refuse to go on with an older iteration.

        Raises:
            UsageError: a newer one began.
        """
        if number != self._number:
            raise UsageError(_OLDER.format(what=self._what))
