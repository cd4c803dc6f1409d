"""A DataLoader whose workers read a chain, with a state after every sample.

A chain is split into *subsets*, one per worker of the first pass. Fewer workers read several
subsets each, in the same turns. Of the subsets 0 to 3, two workers read

    worker 0: 0 2 0 2      worker 1: 1 3 1 3
"""

import copy
import io
import pickle
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import torch

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.base.kinds import count
from streaming_ext.training.position import Newest
from streaming_ext.training.workers import messages_of, pinned, require_settings
from streaming_ext.transforms.chain import Chain, CheckpointableIterator, require_same

STATE_VERSION: Final = 1
_OF_THE_CHAIN: Final = {
    "batch_size",
    "sampler",
    "batch_sampler",
    "shuffle",
    "collate_fn",
    "drop_last",
    "in_order",
}


class Turn(NamedTuple):
    """Some samples of a subset; none if the subset has ended.

    Attributes:
        subset: the number of the subset.
        samples: the samples, in order.
        state: the state before the first sample; with `skip` + n it is the state after n samples.
    """

    subset: int
    samples: list[Any]
    state: dict[str, Any]


def _turns(chain: Chain, state: Mapping[str, Any], worker: int, workers: int) -> Iterator[Turn]:
    """Yield the turns of one worker, until all of its subsets have ended.

    Args:
        chain: the chain.
        state: the state of a loader; the number of workers divides its number of subsets.
        worker: the number of this worker; worker 0 has the first turn.
        workers: the number of workers.
    """
    subsets = len(state["states"])
    own = [(state["next"] + number) % subsets for number in range(worker, subsets, workers)]
    # The subset whose turn it is yields the rest of the message that was interrupted.
    count = state["in_message"] - (state["used"] if worker == 0 else 0)
    with ExitStack() as stack:
        passes = {
            number: stack.enter_context(
                CheckpointableIterator(chain, (number, subsets), state["states"][number])
            )
            for number in own
        }
        going = set(own)  # subsets that have not ended
        while going:
            for number, samples in passes.items():
                before = samples.state_dict()
                some = list(islice(samples, count))
                count = state["in_message"]
                if not some:
                    going.discard(number)
                if going:
                    yield Turn(number, some, before)


class _Pickler(pickle.Pickler):
    """A pickler of tensors by value: torch would send files, and their worker may be gone then."""

    def reducer_override(self, value: Any) -> Any:
        """Reduce tensors that NumPy supports to its arrays, far faster than torch does it."""
        if type(value) is not torch.Tensor:
            return NotImplemented
        try:
            return torch.from_numpy, (value.numpy(),)
        except (TypeError, RuntimeError):
            return NotImplemented


def _messages(chain: Chain, state: Mapping[str, Any], worker: int, workers: int) -> Iterator[bytes]:
    """Pickle the turns of a worker, so that a value that fails to pickle is the worker's error."""
    for turn in _turns(chain, state, worker, workers):
        file = io.BytesIO()
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(turn)
        yield file.getvalue()


class CheckpointableLoader:
    """The samples of a DataLoader's workers in turns, and a state between any two."""

    def __init__(
        self,
        dataset: Chain,
        *,
        num_workers: int = 0,
        samples_in_message: int = 16,
        prefetch_factor: int = 2,
        pin_memory: bool = False,
        **settings: Any,
    ) -> None:
        """Check the settings, but start nothing yet.

        Args:
            dataset: the chain; its samples are batches, so end it with `.batch(...)`.
            num_workers: the number of processes, each with other samples; 0 for this process.
            samples_in_message: the number of consecutive samples that a worker sends at once.
            prefetch_factor: the number of messages that each worker makes ahead.
            pin_memory: true to put tensors in pinned memory.
            settings: more settings of torch's DataLoader, such as `timeout`.

        Raises:
            UsageError: a setting belongs in the chain.
        """
        if found := _OF_THE_CHAIN & settings.keys():
            raise UsageError(
                f"{', '.join(sorted(found))}: the chain makes batches and decides their order. Use "
                ".batch(...) and .shuffle(...) of the dataset."
            )
        self._in_message = count("samples_in_message", samples_in_message, least=1)
        own: dict[str, Any] = {"num_workers": num_workers, "prefetch_factor": prefetch_factor}
        require_settings(**own, pin_memory=pin_memory)
        self._chain, self._settings = dataset, {**settings, **own}
        self._workers, self._pin = num_workers, pin_memory
        self._newest = Newest("loader")
        self._state = self._first_state()
        self._loaded: dict[str, Any] | None = None  # the state at which the next pass starts

    def _first_state(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "next": 0,
            "used": 0,
            "in_message": self._in_message,
            "states": [None] * max(self._workers, 1),
        }

    def __iter__(self) -> Iterator[Any]:
        """Begin the pass whose state was loaded, else a new one; end earlier iterations."""
        state, self._loaded = self._loaded or self._first_state(), None
        self._state = state
        return self._samples(state, self._newest.begin())

    def _samples(self, state: dict[str, Any], iteration: int) -> Iterator[Any]:
        self._newest.require(iteration)
        subsets = len(state["states"])
        for turn in self._received(copy.deepcopy(state)):  # a copy, as workers may start later
            # Count the samples of this message that were used before. There are none if the subset
            # whose turn it was has ended.
            before = state["used"] if turn.subset == state["next"] else 0
            following = {"next": (turn.subset + 1) % subsets, "used": 0}
            state |= following
            for number, sample in enumerate(turn.samples, 1):
                after = {**turn.state, "skip": turn.state["skip"] + number}
                state["states"][turn.subset] = after
                within = {"next": turn.subset, "used": before + number}
                state |= following if number == len(turn.samples) else within
                yield pinned(sample) if self._pin else sample
                self._newest.require(iteration)
        if self._state is state:
            self._state = self._first_state()

    def _received(self, state: dict[str, Any]) -> Iterator[Turn]:
        """Receive the turns of all workers; without workers, make them in this process."""
        if not self._workers:
            if len(state["states"]) == 1:  # make only samples that are needed
                state |= {"in_message": 1, "used": 0}
            yield from _turns(self._chain, state, worker=0, workers=1)
            return
        messages = messages_of(partial(_messages, self._chain, state), **self._settings)
        yield from map(pickle.loads, messages)

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the next sample, as plain values."""
        return copy.deepcopy(self._state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state with the next pass; the state is not changed.

        Raises:
            ConfigMismatchError: the state belongs to another chain, or to a number of workers that
                does not fit this loader's.
        """
        if state_dict.get("version") != STATE_VERSION or "states" not in state_dict:
            raise ConfigMismatchError("This is no state of a CheckpointableLoader.")
        subsets = len(state_dict["states"])
        if subsets % max(self._workers, 1):
            raise ConfigMismatchError(
                f"The state is of {subsets} workers, each with other samples, which "
                f"{self._workers} workers cannot read in the same turns. Resume with "
                f"num_workers=0, or a divisor of {subsets}."
            )
        for number, one in enumerate(state_dict["states"]):
            require_same(self._chain, (number, subsets), one)
        self._state = self._loaded = copy.deepcopy(dict(state_dict))
        self._in_message = state_dict["in_message"]
