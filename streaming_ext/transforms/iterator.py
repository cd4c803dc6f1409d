"""A pass through a chain that can tell at any sample where it stands."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from streaming_ext.errors import ConfigMismatchError
from streaming_ext.format_version import FormatVersion, refuse_newer
from streaming_ext.transforms.block import Sample
from streaming_ext.transforms.flow import Opening, State, Taken, plain

if TYPE_CHECKING:
    from types import TracebackType

    from streaming_ext.transforms.checkpointable import CheckpointableDataset

STATE_VERSION: Final = 1
_MOST: Final = 1024  # samples at once; few at first, since somebody waits for the first one


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
        flow = self._dataset.open(Opening(share=self._share), state and state["source"])
        self._taken = Taken(flow, 0 if state is None else int(state["skip"]))
        self._samples: Sequence[Sample] = ()
        self._at, self._most = 0, 1

    def __iter__(self) -> "CheckpointableIterator":
        return self

    def __next__(self) -> Any:
        if self._at == len(self._samples):
            self._samples, self._at = (), 0
            block = self._taken.some(self._most)
            if block is None:
                self.close()
                raise StopIteration
            self._most = min(2 * self._most, _MOST)
            self._samples = block.samples
        sample = self._samples[self._at]
        self._at += 1
        return sample

    def state_dict(self) -> dict[str, Any]:
        """Where the next sample is, as plain values: for JSON, torch.save and the like."""
        return self.told(self.here())

    def here(self) -> State:
        """Where the next sample is, to be told later."""
        return self._taken.state(unread=len(self._samples) - self._at)

    def told(self, here: State, more: int = 0) -> dict[str, Any]:
        """The state at a place, or so many samples behind it, all of which were handed over."""
        told = {"version": STATE_VERSION, "chain": self._dataset.described, "share": self._share}
        made: dict[str, Any] = plain({**told, **here, "skip": int(here["skip"]) + more})
        return made

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on at a state, as torchdata's loader asks for it."""
        before = self._taken
        self._begin(state_dict)  # a state that is refused leaves this where it is
        before.close()

    def close(self) -> None:
        """Stop what runs in the background."""
        self._taken.close()

    def __enter__(self) -> "CheckpointableIterator":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
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
