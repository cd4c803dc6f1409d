"""A pass through a chain, which has a state after each sample."""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.format.schema import refuse_newer
from streaming_ext.transforms.block import Sample
from streaming_ext.transforms.flow import Input, Subset

if TYPE_CHECKING:
    from streaming_ext.transforms.checkpointable import CheckpointableDataset

STATE_VERSION: Final = 1
_FILES: Final = re.compile(r"files [0-9a-f]{16}")  # in the description of a chain


class CheckpointableIterator:
    """Samples one by one, and a state between any two."""

    def __init__(
        self, dataset: "CheckpointableDataset", subset: Subset, state: Mapping[str, Any] | None
    ) -> None:
        """Start, or resume from a state, which is not changed.

        Raises:
            ConfigMismatchError: the state is of another chain or subset.
        """
        self._dataset, self._subset = dataset, subset
        self._start(state)

    def _start(self, state: Mapping[str, Any] | None) -> None:
        if state is not None:
            require_same(self._dataset, self._subset, state)
        self._given = Input(self._dataset, self._subset, state)
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
            self._given.state()  # states before it go
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
        """The state before the next sample, as plain values: for JSON, torch.save and the like."""
        return copy.deepcopy(
            {
                "version": STATE_VERSION,
                "chain": self._dataset.described,
                "subset": list(self._subset),
                **self._given.state(self._given.used + self._at),
            }
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state, as torchdata's loader does."""
        before = self._given
        self._start(state_dict)  # a state that is refused changes nothing
        before.close()

    def close(self) -> None:
        """Stop what runs in the background."""
        self._given.close()

    def __enter__(self) -> "CheckpointableIterator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_same(
    dataset: "CheckpointableDataset", subset: Subset, state: Mapping[str, Any]
) -> None:
    """Refuse a state of another chain.

    Raises:
        ConfigMismatchError: naming what differs.
    """
    version = state.get("version")
    refuse_newer(version, STATE_VERSION, what="The state of a chain")
    if version != STATE_VERSION or "chain" not in state:
        raise ConfigMismatchError("This is no state of a CheckpointableDataset.")
    old, new = state["chain"], dataset.described
    if old != new and _FILES.sub("", old) == _FILES.sub("", new):
        raise ConfigMismatchError(
            "The state is of other files: names, sizes or contents have changed. Resume with the "
            "same files, or start anew."
        )
    if old != new:
        raise ConfigMismatchError(
            f"The state is of the chain `{old}`, this one is `{new}`. Resume with the same steps "
            "and settings."
        )
    if tuple(state["subset"]) != subset:
        number, workers = state["subset"]
        raise ConfigMismatchError(
            f"The state is of worker {number} of {workers}, this is worker {subset[0]} of "
            f"{subset[1]}: each has other samples. Resume with num_workers={workers}."
        )
