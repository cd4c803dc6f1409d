"""A chain, one pass of it, and the state between two samples."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.transforms.block import Sample
from streaming_ext.transforms.flow import Input, Open, Subset

STATE_VERSION: Final = 1


class Chain(Protocol):
    """A source and the steps after it.

    Attributes:
        open: a function that opens a flow of its samples, from a state on.
        described: the source and the steps as a text, by which a state recognizes them.
    """

    open: Open
    described: str


class CheckpointableIterator(AbstractContextManager["CheckpointableIterator"]):
    """Samples one by one, and a state between any two."""

    def __init__(self, chain: Chain, subset: Subset, state: Mapping[str, Any] | None) -> None:
        """Start a pass, or resume it from a state, which is not changed.

        Raises:
            ConfigMismatchError: the state belongs to another chain or subset.
        """
        require_same(chain, subset, state)
        self._chain, self._subset = chain, subset
        self._given = Input(chain.open, subset, state)
        self._samples: Sequence[Sample] = ()
        self._at = 0
        self._failed: BaseException | None = None

    def __iter__(self) -> "CheckpointableIterator":
        return self

    def __next__(self) -> Any:
        if self._failed is not None:
            raise UsageError(
                f"This pass ended with an error ({type(self._failed).__name__}). Resume in another "
                "one: dataset.iter(it.state_dict())."
            ) from self._failed
        while self._at == len(self._samples):
            self._given.use()
            self._given.state()  # forget the states before it
            self._samples, self._at = (), 0
            try:
                is_more = self._given.more()
            except BaseException as error:
                self._failed = error
                raise
            if not is_more:
                self.close()
                raise StopIteration
            self._samples = self._given.rest.samples
        self._at += 1
        return self._samples[self._at - 1]

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the next sample, as plain values for JSON and torch.save."""
        return copy.deepcopy(
            {
                "version": STATE_VERSION,
                "chain": self._chain.described,
                "subset": list(self._subset),
                **self._given.state(self._given.used + self._at),
            }
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state, as torchdata's loader does."""
        resumed = CheckpointableIterator(self._chain, self._subset, state_dict)
        self.close()  # a state that is refused changes nothing
        vars(self).update(vars(resumed))

    def close(self) -> None:
        """Stop the work in the background."""
        self._given.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def require_same(chain: Chain, subset: Subset, state: Mapping[str, Any] | None) -> None:
    """Refuse a state of another chain; None is the beginning of any chain.

    Raises:
        ConfigMismatchError: the chain or subset differs; the message says how.
    """
    if state is None:
        return
    if state.get("version") != STATE_VERSION or "chain" not in state:
        raise ConfigMismatchError("This is no state of a CheckpointableDataset.")
    old, new = state["chain"], chain.described
    if old != new:
        raise ConfigMismatchError(
            f"The state is of the chain `{old}`, this one is `{new}`. Resume with the same steps, "
            "settings and files, which a hash of their names, sizes and contents stands for."
        )
    if tuple(state["subset"]) != subset:
        number, workers = state["subset"]
        raise ConfigMismatchError(
            f"The state is of worker {number} of {workers}, this is worker {subset[0]} of "
            f"{subset[1]}: each has other samples. Resume with num_workers={workers}."
        )
