"""Several datasets as one: `interleave_datasets` and `concat_datasets`."""

from collections.abc import Sequence
from functools import partial

from streaming_ext.arguments.kinds import plain_real
from streaming_ext.transforms.checkpointable import CheckpointableDataset
from streaming_ext.transforms.checks import require, whole
from streaming_ext.transforms.steps.combining import open_concatenated, open_interleaved


def concat_datasets(sources: Sequence[CheckpointableDataset]) -> CheckpointableDataset:
    """Datasets one behind the other."""
    told = ", ".join(source.described for source in sources)
    require(sources=bool(sources), got="none", allowed="one dataset or more")
    return CheckpointableDataset(
        partial(open_concatenated, sources=tuple(sources)), f"concat({told})"
    )


def interleave_datasets(
    sources: Sequence[CheckpointableDataset],
    weights: Sequence[float] | None = None,
    chunk_size: int = 1024,
) -> CheckpointableDataset:
    """Samples of datasets in turns, by weights, until one that has its turn is at its end.

    Args:
        sources: the datasets.
        weights: how often each has its turn; by default alike.
        chunk_size: turns after which they begin anew.
    """
    given = [1.0] * len(sources) if weights is None else list(weights)
    weights = [plain for one in given if (plain := plain_real(one)) is not None]
    fits = len(weights) == len(given) == len(sources) > 0 and min(weights) >= 0 and sum(weights) > 0
    chunk_size = whole(chunk_size=chunk_size, least=1)
    require(weights=fits, got=given, allowed="a number that is not negative for each dataset")
    told = ", ".join(source.described for source in sources)
    return CheckpointableDataset(
        partial(open_interleaved, sources=tuple(sources), weights=tuple(weights), cycle=chunk_size),
        f"interleave({told}; {weights}, {chunk_size})",
    )
