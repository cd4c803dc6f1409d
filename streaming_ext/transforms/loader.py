"""A DataLoader with workers over a chain, whose state is known at every sample.

A chain is dealt out to *shares*, each of which has samples of its own; at the beginning there is
one share a worker. Fewer workers go on in several shares each, in the same turns. Of shares 0 to 3,
two workers make

    worker 0: 0 2 0 2      worker 1: 1 3 1 3
"""

import copy
import io
import mmap
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.training.position import Newest
from streaming_ext.training.workers import as_it_is, end_with_parent, forks, messages_of
from streaming_ext.transforms.checkpointable import CheckpointableDataset
from streaming_ext.transforms.iterator import require_same

STATE_VERSION: Final = 1
SLOT_BYTES: Final = 4 << 20  # of a message; memory that was never written takes no room
_PREFETCHED: Final = 2  # messages of each worker, by torch's default


@dataclass(frozen=True, slots=True)
class Turn:
    """Some samples of a share; none where it is at its end.

    Attributes:
        share: its number.
        samples: in order.
        state: before the first one; `skip` more of it are the states behind it.
    """

    share: int
    samples: list[Any]
    state: dict[str, Any]


def _turns(
    dataset: CheckpointableDataset, state: Mapping[str, Any], *, worker: int, workers: int
) -> Iterator[Turn]:
    """The turns of one worker, until all of its shares are at their end.

    Args:
        dataset: the chain.
        state: of a loader; how many workers there are divides its number of shares.
        worker: number of this worker; 0 has the first turn.
        workers: how many there are.
    """
    shares = len(state["states"])
    mine = [(state["next"] + number) % shares for number in range(worker, shares, workers)]
    # The share whose turn it is gives the rest of the samples that were in hand.
    count = state["in_message"] - (state["used"] if worker == 0 else 0)
    with ExitStack() as stack:
        flows = {
            share: stack.enter_context(dataset.iter_share((share, shares), own))
            for share in mine
            for own in [state["states"][share]]
        }
        ended: set[int] = set()
        while len(ended) < len(mine):
            for share, samples in flows.items():
                before = samples.state_dict()
                some = list(islice(samples, count))
                count = state["in_message"]
                if not some:
                    ended.add(share)
                if len(ended) < len(mine):
                    yield Turn(share, some, before)


class _Slots:
    """Memory that workers and their parent have: what a pipe carries is copied four times.

    A worker takes a slot that is free, and the receiver frees it when it has copied what is in it.
    """

    def __init__(self, workers: int, each: int) -> None:
        self._each = each
        self._taken = mmap.mmap(-1, workers * each + 1)  # a byte for each slot
        self._memory = mmap.mmap(-1, workers * each * SLOT_BYTES + 1)

    def write(self, turn: Turn, worker: int) -> tuple[int | None, bytes, list[Any]]:
        """A turn pickled, and its tensors in a slot; those that find no room are pickled too."""
        slot = self._taken.find(b"\0", worker * self._each, (worker + 1) * self._each)
        tensors: list[Any] = []
        pickled = _pickled(turn, None if slot < 0 else tensors.append)
        sizes = [tensor.raw().nbytes for tensor in tensors]
        if not sizes or sum(sizes) > SLOT_BYTES:
            return None, _pickled(turn, None) if sizes else pickled, []
        self._memory.seek(slot * SLOT_BYTES)
        for tensor in tensors:
            self._memory.write(tensor)
        self._taken[slot] = 1
        return slot, pickled, sizes

    def read(self, slot: int | None, pickled: bytes, sizes: list[int]) -> Turn:
        """A turn, each of its tensors of its own memory."""
        self._memory.seek((slot or 0) * SLOT_BYTES)
        tensors = [bytearray(self._memory.read(size)) for size in sizes]
        if slot is not None:
            self._taken[slot] = 0
        turn: Turn = pickle.loads(pickled, buffers=tensors)  # noqa: S301 - a worker of ours
        return turn


def _pickled(turn: Turn, tensors: Callable[[pickle.PickleBuffer], Any] | None) -> bytes:
    file = io.BytesIO()
    _Writer(file, pickle.HIGHEST_PROTOCOL, buffer_callback=tensors).dump(turn)
    return file.getvalue()


class _Writer(pickle.Pickler):
    """Pickles tensors by value: torch would send files, whose worker may be gone by then."""

    def reducer_override(self, value: Any) -> Any:
        """Those that NumPy knows as its arrays, which takes a tenth of the time."""
        if type(value) is not torch.Tensor:
            return NotImplemented
        try:
            return torch.from_numpy, (value.numpy(),)
        except (TypeError, RuntimeError):
            return NotImplemented


class _Messages(IterableDataset[Any]):
    """What a worker sends: its turns, pickled here: what cannot be is an error of the worker."""

    def __init__(
        self, dataset: CheckpointableDataset, state: Mapping[str, Any], slots: _Slots | None
    ) -> None:
        self._dataset, self._state, self._slots = dataset, state, slots

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None:
            raise UsageError("Messages are made in workers only.")
        turns = _turns(self._dataset, self._state, worker=info.id, workers=info.num_workers)
        for turn in turns:
            slots = self._slots
            yield slots.write(turn, info.id) if slots else (None, _pickled(turn, None), [])


class CheckpointableLoader:
    """What a DataLoader gives, its workers' samples in turns, and a state between any two."""

    def __init__(
        self,
        dataset: CheckpointableDataset,
        *,
        num_workers: int = 0,
        samples_in_message: int = 16,
        prefetch_factor: int = _PREFETCHED,
        **settings: Any,
    ) -> None:
        """Start nothing yet.

        Args:
            dataset: whose samples are batches: end the chain with `.batch(...)`.
            num_workers: processes, each with samples of its own; none for this one.
            samples_in_message: that a worker sends at once, and that come one behind the other.
            prefetch_factor: messages that each worker makes ahead.
            settings: more of torch's DataLoader, such as `pin_memory`.

        Raises:
            UsageError: a setting belongs into the chain.
        """
        wrong = {"batch_size", "sampler", "batch_sampler", "shuffle", "collate_fn", "drop_last"}
        if found := wrong & settings.keys():
            raise UsageError(
                f"{', '.join(sorted(found))}: batches are made by the chain. Use .batch(...) and "
                ".shuffle(...) of the dataset."
            )
        if not settings.get("in_order", True):
            raise UsageError(
                "in_order=False: samples that come as they are done have no order that a state "
                "could name. Leave it out; the chain's own steps may have ordered=False."
            )
        if num_workers < 0 or min(samples_in_message, prefetch_factor) < 1:
            raise UsageError(
                "`num_workers` must be 0 or more, `samples_in_message` and `prefetch_factor` 1 or "
                f"more, got {num_workers}, {samples_in_message} and {prefetch_factor}."
            )
        self._pin = bool(settings.pop("pin_memory", False))
        if self._pin and not torch.cuda.is_available():
            raise UsageError("pin_memory=True needs a GPU. Pass torch.cuda.is_available() instead.")
        self._dataset, self._settings = dataset, settings
        self._workers, self._prefetched = num_workers, prefetch_factor
        self._in_message = samples_in_message
        self._newest = Newest("loader")
        self._state = self._beginning()
        self._loaded: dict[str, Any] | None = None  # that the next pass begins at

    def _beginning(self) -> dict[str, Any]:
        states: list[Any] = [None] * max(self._workers, 1)
        return {
            "version": STATE_VERSION,
            "next": 0,
            "used": 0,
            "in_message": self._in_message,
            "states": states,
        }

    def __iter__(self) -> Iterator[Any]:
        """The rest of a pass that a state was loaded of, else a new one; ends those before it."""
        state, self._loaded = self._loaded or self._beginning(), None
        self._state = state
        return self._samples(state, self._newest.begin())

    def _samples(self, state: dict[str, Any], iteration: int) -> Iterator[Any]:
        self._newest.require(iteration)
        begun = copy.deepcopy(state)  # workers begin at it, however far this has come by then
        for turn in self._received(begun):
            own, shares = turn.share, len(state["states"])
            if own != state["next"]:  # the one whose turn it was is at its end
                state["used"] = 0
            if not turn.samples:
                state["next"], state["used"] = (own + 1) % shares, 0
            for number, sample in enumerate(turn.samples, 1):
                state["states"][own] = {**turn.state, "skip": turn.state["skip"] + number}
                whole = number == len(turn.samples)
                state["next"] = (own + whole) % shares
                state["used"] = 0 if whole else state["used"] + 1
                yield _pinned(sample) if self._pin else sample
                self._newest.require(iteration)
        if self._state is state:
            self._state = self._beginning()

    def _received(self, state: dict[str, Any]) -> Iterator[Turn]:
        """Samples of all workers, or of this process where there are none."""
        if not self._workers:
            # What was asked for, and no more, is made: nobody waits for a message to be full.
            single = len(state["states"]) == 1
            at = {**state, "in_message": 1, "used": 0} if single else state
            yield from _turns(self._dataset, at, worker=0, workers=1)
            return
        forked = forks(self._settings.get("multiprocessing_context"))
        own = self._settings.get("worker_init_fn")

        def begin(worker: int) -> None:
            end_with_parent()
            if own is not None:
                own(worker)

        # Only forks have the memory; each has a slot for what is read, and one for what it makes.
        slots = _Slots(self._workers, self._prefetched + 2) if forked else None
        loader: DataLoader[Any] = DataLoader(
            _Messages(self._dataset, state, slots),
            batch_size=None,
            collate_fn=as_it_is,
            num_workers=self._workers,
            prefetch_factor=self._prefetched,
            **self._settings | {"worker_init_fn": begin if forked else own},
        )
        for slot, pickled, tensors in messages_of(loader):
            yield slots.read(slot, pickled, tensors) if slots else pickle.loads(pickled)  # noqa: S301

    def state_dict(self) -> dict[str, Any]:
        """Where the next sample is, as plain values."""
        return copy.deepcopy(self._state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on at a state with the next pass; the state is left as it is.

        Raises:
            ConfigMismatchError: it is of another chain, or of a number of workers that these
                cannot go on for.
        """
        if state_dict.get("version") != STATE_VERSION or "states" not in state_dict:
            raise ConfigMismatchError("This is no state of a CheckpointableLoader.")
        shares, known = len(state_dict["states"]), state_dict["in_message"]
        if shares % max(self._workers, 1):
            able = ", ".join(str(n) for n in range(1, shares + 1) if shares % n == 0)
            raise ConfigMismatchError(
                f"The state is of {shares} workers, each with samples of its own, for which these "
                f"{self._workers} cannot go on in the same turns. Resume with num_workers= one of "
                f"0, {able}."
            )
        if shares > 1 and self._in_message != known:
            raise ConfigMismatchError(
                f"The state is of samples_in_message={known}, this loader has {self._in_message}: "
                f"so many come of each worker in turn. Resume with samples_in_message={known}."
            )
        for number, one in enumerate(state_dict["states"]):
            if one is not None:
                require_same(self._dataset, (number, shares), one)
        state = copy.deepcopy(dict(state_dict))
        if shares == 1:  # samples come one behind the other, whatever a message holds
            state |= {"in_message": self._in_message, "used": 0}
        self._state = self._loaded = state


def _pinned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _pinned(one) for name, one in value.items()}
    return value.pin_memory() if isinstance(value, torch.Tensor) else value
