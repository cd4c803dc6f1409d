"""How the sequences of several streams share a step."""

from dataclasses import dataclass, replace
from typing import Final

from streaming_ext.errors import UsageError
from streaming_ext.sampler.orders.mixture import WINDOW_ROWS

BATCHINGS: Final = ("random", "stratified", "per_stream", "device_per_stream")
_WORDS: Final = (
    "`random` mixes streams within a step, `stratified` does so in the proportions of the epoch, "
    "`per_stream` fills each step from one, `device_per_stream` the batch of each rank; "
    "'device_per_stream:8' says how many sequences that are, for a run that goes on on other ranks"
)


@dataclass(frozen=True, slots=True)
class Batching:
    """Which sequences of a step are of one stream.

    An epoch is dealt out to streams in rows of consecutive places. Ranks take the places of a step
    lane by lane; with `device_per_stream` they take them as they come, so that the rows of a
    rank are whole.

    Attributes:
        method: one of `BATCHINGS`.
        group: consecutive sequences of one stream with `device_per_stream`: what a rank had when
            the run began. None until that is known, and with the other methods.
    """

    method: str = "random"
    group: int | None = None

    @classmethod
    def parse(cls, asked: object) -> "Batching":
        """What a user asks for: a method, or `device_per_stream:8`.

        Raises:
            UsageError: there is no such method.
        """
        text = str(asked)
        method, _, count = text.partition(":")
        known = method in BATCHINGS
        if count or text.endswith(":"):
            known = method == "device_per_stream" and count.isdecimal() and int(count) > 0
        if not known:
            raise UsageError(
                f"`batching_method` must be {' or '.join(map(repr, BATCHINGS))}, got {asked!r}: "
                f"{_WORDS}."
            )
        return cls(method, int(count) if count else None)

    def __str__(self) -> str:
        """As a user writes it, and as a state names it."""
        return self.method if self.group is None else f"{self.method}:{self.group}"

    def on_ranks(self, *, batch_size: int, num_ranks: int) -> "Batching":
        """With the size of its groups.

        Args:
            batch_size: sequences a rank and step.
            num_ranks: data-parallel ranks.

        Raises:
            UsageError: groups of the size that is asked for do not fit the batches.
        """
        if self.method != "device_per_stream":
            return self
        group = self.group or batch_size
        if batch_size % group and group % batch_size:
            raise UsageError(
                f"batching_method='{self}' has {group} sequences of one stream, batch_size is "
                f"{batch_size}: one must divide the other, else a rank's batch would cut them."
            )
        if batch_size * num_ranks % group:
            raise UsageError(
                f"batching_method='{self}' has {group} sequences of one stream, a step holds "
                f"{batch_size * num_ranks}: {group} must divide it."
            )
        return replace(self, group=group)

    def row(self, *, global_batch: int, lanes: int) -> int:
        """Consecutive places that are of one stream, where there are several."""
        rows = {"per_stream": global_batch, "stratified": 1, "device_per_stream": self.group}
        return rows.get(self.method) or lanes

    def window(self, *, global_batch: int) -> int:
        """Rows that hold the proportions."""
        return global_batch if self.method == "stratified" else WINDOW_ROWS

    def lanes(self, lanes: int) -> int:
        """Lanes by which ranks take the places of a step: 1 where they take them as they come."""
        return 1 if self.method == "device_per_stream" else lanes

    def least(self, row: int) -> tuple[str, str]:
        """What each stream must give an epoch at least, and what to do where it does not."""
        return {
            "per_stream": (f"one global batch of {row}", "lower batch_size"),
            "device_per_stream": (f"one batch of a rank, {row}", "lower batch_size"),
            "stratified": ("one", "raise epoch_size"),
        }.get(
            self.method,
            (f"one for each of the {row} canonical nodes", "lower num_canonical_nodes"),
        )
