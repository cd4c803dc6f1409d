"""A dataset as a source of Grain: sequences by number in Grain's order, or batches in ours."""

from collections.abc import Callable, Iterator
from typing import Any

from grain import DatasetIterator, IterDataset

from streaming_ext.training.loader import StreamingTokenLoader
from streaming_ext.training.token_dataset import StreamingTokenDataset

Batch = dict[str, Any]


class GrainSource:
    """The sequences of a dataset by number, for `grain.MapDataset.source`: Grain shuffles them."""

    def __init__(self, dataset: StreamingTokenDataset) -> None:
        """Wrap a dataset.

        Args:
            dataset: the dataset, opened with dp_rank=0 and dp_world_size=1: Grain splits it.
        """
        self._dataset = dataset

    def __len__(self) -> int:
        return self._dataset.size

    def __getitem__(self, number: int) -> Batch:
        return self._dataset.get_item(number)


class GrainBatches(IterDataset[Batch]):  # type: ignore[misc, unused-ignore]
    """The batches of a loader, epoch after epoch; a state fits any number of ranks."""

    def __init__(self, open_loader: Callable[[], StreamingTokenLoader]) -> None:
        """Wrap a loader.

        Args:
            open_loader: the function that opens a loader for each pass.
        """
        super().__init__()
        self._open_loader = open_loader

    def __iter__(self) -> "GrainIterator":
        return GrainIterator(self._open_loader())


class GrainIterator(DatasetIterator[Batch]):  # type: ignore[misc, unused-ignore]
    """A pass of `GrainBatches`."""

    def __init__(self, loader: StreamingTokenLoader) -> None:
        """Start with the next batch of a loader."""
        super().__init__()
        self._loader = loader
        self._batches: Iterator[Batch] = iter(())

    def __next__(self) -> Batch:
        for batch in self._batches:
            return batch
        self._batches = iter(self._loader)
        return next(self._batches)

    def get_state(self) -> Batch:
        """Return the state of the loader, as plain values."""
        return self._loader.state_dict()

    def set_state(self, state: Batch) -> None:
        """Resume from a state, which is not changed."""
        self._loader.load_state_dict(state)
        self._batches = iter(())
