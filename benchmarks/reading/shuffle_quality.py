"""How far do sequences come apart that were neighbours on disk?

Run: python -m benchmarks.reading.shuffle_quality [PICTURE.png]
For one epoch of 2^23 sequences in 512 shards, windows of 2^18 in each of 8 canonical nodes: the
distance in
the epoch between each sequence and the next one on disk, and how many distinct shards a global
batch of 512 holds; beside a true permutation and stock's py1e. The picture needs matplotlib.
"""

import sys

import numpy as np

from streaming_ext.order.order import OrderSpec, PassOrder
from streaming_ext.training.stock import streaming  # noqa: F401 - lets the next import load

COUNT, SHARD, BATCH, CANONICAL_NODES, WINDOW = 1 << 23, 1 << 14, 512, 8, 1 << 18


def orders() -> dict[str, np.ndarray]:
    """The epoch as each of them orders it: sequence numbers by place, (COUNT,)."""
    from streaming.base.partition import get_partitions
    from streaming.base.shuffle import get_shuffle

    bounds = np.arange(0, COUNT + 1, SHARD)
    spec = OrderSpec(shuffle=True, seed=17, canonical_nodes=CANONICAL_NODES, window=WINDOW)
    sizes = np.full(COUNT // SHARD, SHARD)
    stock = get_shuffle("py1e", sizes, CANONICAL_NODES, 17, 0, WINDOW)
    # (nodes, ranks, workers, batches, batch size) -> the places of the epoch
    positions = get_partitions(
        "relaxed", COUNT, CANONICAL_NODES, CANONICAL_NODES, 1, 1, BATCH // CANONICAL_NODES, 0
    )
    positions = positions.transpose(3, 0, 1, 2, 4).reshape(-1)
    return {
        "shardmill": PassOrder.of(spec, bounds=bounds).sequences(np.arange(COUNT)),
        "stock py1e": stock[positions[positions >= 0]],
        "true permutation": np.random.default_rng(17).permutation(COUNT),
        "not shuffled": np.arange(COUNT),
    }


def main() -> None:
    """Print the figures, draw the picture when a file is named."""
    distances = {}
    for name, order in orders().items():
        position = np.empty(COUNT, np.int64)
        position[order] = np.arange(COUNT)
        apart = np.abs(np.diff(position))
        distances[name] = np.sort(apart)
        shards = [len(np.unique(batch // SHARD)) for batch in order.reshape(-1, BATCH)[::64]]
        near = (apart < BATCH).mean()
        print(
            f"{name:18s} median distance {int(np.median(apart)):8d} places, in reach of one "
            f"batch {near:.4%}, shards a batch {np.mean(shards):.1f}"
        )
    if len(sys.argv) < 2:
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    share = np.arange(1, COUNT, 997) / COUNT
    for name, sorted_distances in distances.items():
        axes.plot(np.maximum(sorted_distances[::997][: len(share)], 1), share, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("places between two sequences that are neighbours on disk")
    axes.set_ylabel("share of neighbours at most so far apart")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(sys.argv[1], dpi=110)


if __name__ == "__main__":
    main()
