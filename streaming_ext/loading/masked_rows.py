"""What the row filter masked, counted by each rank and put together by all."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from streaming_ext.checkpoint.consistent import count_of
from streaming_ext.errors import ConfigMismatchError, UsageError

STATE_KEY: Final = "masked"  # of a state


@dataclass(frozen=True, kw_only=True, slots=True)
class Masked:
    """Rows that a filter masked.

    Attributes:
        rows: how many.
        tokens: that they have, padding counted.
    """

    rows: int = 0
    tokens: int = 0

    def __add__(self, other: "Masked") -> "Masked":
        return Masked(rows=self.rows + other.rows, tokens=self.tokens + other.tokens)

    def __sub__(self, other: "Masked") -> "Masked":
        return Masked(rows=self.rows - other.rows, tokens=self.tokens - other.tokens)


@dataclass(kw_only=True, slots=True)
class _Account:
    """Of some epochs.

    Attributes:
        own: of this rank, since all ranks were asked last.
        told: of all ranks, as they said when they were asked last.
    """

    own: Masked = Masked()
    told: Masked = Masked()


class MaskedCount:
    """The account of one loader: of the epochs before this one, and of this one by itself.

    An epoch may begin anew where it was broken off: then what was counted of it is taken back.
    """

    def __init__(self, *, rank: int, ranks: int, again: bool) -> None:
        """Begin with nothing.

        Args:
            rank: data-parallel rank.
            ranks: how many there are.
            again: whether an epoch may begin anew; a state then tells of it by itself.
        """
        self._rank, self._ranks, self._again = rank, ranks, again
        self._before, self._epoch = _Account(), _Account()

    def add(self, rows: int, length: int) -> None:
        """Count some rows of so many tokens."""
        if rows:
            self._epoch.own += Masked(rows=rows, tokens=rows * length)

    def next_epoch(self) -> None:
        """An epoch begins; the one before it is not taken back any more."""
        self._before.own += self._epoch.own
        self._before.told += self._epoch.told
        self._epoch = _Account()

    def epoch_again(self) -> None:
        """The epoch begins anew."""
        self._epoch = _Account()

    def all_ranks(self, group: Any) -> Masked:
        """Of all ranks, which call this together.

        Args:
            group: torch process group with every data-parallel rank; None for the default one.

        Raises:
            UsageError: there is no group, or not every rank is in it.
        """
        if self._ranks > 1:
            own = self._gathered(group)
            if sorted(own) != list(range(self._ranks)):
                raise UsageError(
                    f"The group holds the data-parallel ranks {sorted(own)}, of {self._ranks}. "
                    "Pass group= of all of them."
                )
        else:
            own = {0: (self._before.own, self._epoch.own)}
        for account, counts in zip(
            (self._before, self._epoch), zip(*own.values(), strict=True), strict=True
        ):
            account.told = sum(counts, account.told)
            account.own = Masked()
        return self._before.told + self._epoch.told

    def _gathered(self, group: Any) -> dict[int, tuple[Masked, Masked]]:
        """What each rank counted; those that read the same say the same."""
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            raise UsageError(
                f"What the other {self._ranks - 1} ranks masked is known to them alone: call "
                "torch.distributed.init_process_group first."
            )
        found: list[Any] = [None] * distributed.get_world_size(group)
        own = self._before.own, self._epoch.own
        distributed.all_gather_object(found, (self._rank, own), group=group)
        return dict(found)

    def state(self) -> dict[str, Any]:
        """What a state holds of it."""
        before, epoch = (
            account.told + account.own if self._ranks == 1 else account.told
            for account in (self._before, self._epoch)
        )
        of_epoch = {"epoch": asdict(epoch)} if self._again else {}
        return {STATE_KEY: asdict(before + epoch) | of_epoch}

    def go_on(self, saved: tuple[Masked, Masked], *, begins: bool) -> None:
        """Go on from what `saved_masked` found in a state.

        Args:
            saved: of the epochs before this one, and of this one.
            begins: whether an epoch begins where it goes on.
        """
        before, epoch = saved
        self._before, self._epoch = _Account(told=before), _Account(told=epoch)
        if begins:
            self.next_epoch()


def saved_masked(state: Mapping[str, Any]) -> tuple[Masked, Masked]:
    """What a state holds of masked rows: of the epochs before its own, and of its own.

    Raises:
        ConfigMismatchError: it is damaged.
    """
    none = asdict(Masked())
    told = state.get(STATE_KEY, none)
    try:
        total = _masked(told)
        # Earlier versions did not tell of the epoch by itself: that is then not taken back.
        epoch = _masked(told.get("epoch", none))
        before = _masked(asdict(total - epoch))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigMismatchError(f"The state's counts are damaged: {error!r}.") from error
    return before, epoch


def _masked(told: Mapping[str, Any]) -> Masked:
    return Masked(rows=count_of(told["rows"]), tokens=count_of(told["tokens"]))
