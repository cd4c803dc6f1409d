"""A pass through a chain that can tell at any sample where it stands."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from streaming_ext.base.errors import ConfigMismatchError
from streaming_ext.format.schema import FormatVersion, refuse_newer
from streaming_ext.transforms.block import Sample
from streaming_ext.transforms.flow import Input, Opening, plain

if TYPE_CHECKING:
    from streaming_ext.transforms.checkpointable import CheckpointableDataset

STATE_VERSION: Final = 1
_FILES: Final = re.compile(r"files [0-9a-f]{16}")  # in what describes a chain


class CheckpointableIterator:
    """Samples one by one, and a state between any two."""

    def __init__(
        self,
        dataset: "CheckpointableDataset",
        share: tuple[int, int],
        state: Mapping[str, Any] | None,
    ) -> None:
        """Begin, or go on at a state, which is left as it is.

        Raises:
            ConfigMismatchError: the state is of another chain, or of another share.
        """
        self._dataset, self._share = dataset, share
        self._begin(state)

    def _begin(self, state: Mapping[str, Any] | None) -> None:
        if state is not None:
            require_same(self._dataset, self._share, state)
        self._given = Input(self._dataset, Opening(self._share), state)
        self._samples: Sequence[Sample] = ()
        self._at = 0

    def __iter__(self) -> "CheckpointableIterator":
        return self

    def __next__(self) -> Any:
        while self._at == len(self._samples):
            self._given.use()
            self._given.place()  # what is before it is not asked for any more
            self._samples, self._at = (), 0
            if not self._given.more():
                self.close()
                raise StopIteration
            self._samples = self._given.rest.samples  # one piece
        self._at += 1
        return self._samples[self._at - 1]

    def state_dict(self) -> dict[str, Any]:
        """Where the next sample is, as plain values: for JSON, torch.save and the like."""
        place = self._given.place(self._given.used + self._at)
        state: dict[str, Any] = plain(
            {
                "version": STATE_VERSION,
                "chain": self._dataset.described,
                "share": self._share,
                **place,
            }
        )
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on at a state, as torchdata's loader asks for it."""
        before = self._given
        self._begin(state_dict)  # a state that is refused leaves this where it is
        before.close()

    def close(self) -> None:
        """Stop what runs in the background."""
        self._given.close()

    def __enter__(self) -> "CheckpointableIterator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_same(
    dataset: "CheckpointableDataset", share: tuple[int, int], state: Mapping[str, Any]
) -> None:
    """Refuse a state of another chain.

    Raises:
        ConfigMismatchError: naming what differs.
    """
    version = state.get("version")
    refuse_newer(version, FormatVersion(STATE_VERSION), what="The state of a chain")
    if version != STATE_VERSION or "chain" not in state:
        raise ConfigMismatchError("This is no state of a CheckpointableDataset.")
    chains = state["chain"], dataset.described
    if len({_FILES.sub("", chain) for chain in chains}) < len({*chains}):
        raise ConfigMismatchError(
            "The state is of other files: their names, sizes or contents are not those that "
            "are there now. Resume with the same files, or start anew."
        )
    if state["chain"] != dataset.described:
        raise ConfigMismatchError(
            f"The state is of the chain `{state['chain']}`, this one is `{dataset.described}`. "
            "Resume with the same steps and settings."
        )
    if tuple(state["share"]) != share:
        number, workers = state["share"]
        raise ConfigMismatchError(
            f"The state is of worker {number} of {workers}, this is worker {share[0]} of "
            f"{share[1]}: each has samples of its own. Resume with num_workers={workers}."
        )
