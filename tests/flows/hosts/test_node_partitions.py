"""Each node makes its own partition, and training reads the partitions together."""

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from tests.command_line import refused, succeeded
from tests.conftest import NUM_FILES
from tests.tasks.core.build_dataset import manifest_of


def test_two_nodes(served, shardmill, dataset, tmp_path) -> None:
    outputs = [tmp_path / f"node{rank}" for rank in (0, 1)]
    for rank, output in enumerate(outputs):
        succeeded(served.shard(output, nodes=2, node_rank=rank))
        succeeded(shardmill("verify", output))
    whole, partitions = manifest_of(dataset), [manifest_of(output) for output in outputs]
    assert whole.node_partition is None
    urls = [part.source.url for partition in partitions for part in partition.parts]
    assert sorted(urls) == [part.source.url for part in whole.parts]
    fewer = NUM_FILES // 2
    assert {len(partition.parts) for partition in partitions} == {fewer, NUM_FILES - fewer}
    assert sum(partition.tokens for partition in partitions) == whole.tokens
    first, second = (partition.node_partition for partition in partitions)
    assert first is not None
    assert second is not None
    assert (first.rank, second.rank) == (0, 1)
    assert first.sources == second.sources

    # The folder of one node is taken neither for that of another node nor for the whole dataset.
    for options in ({"nodes": 2, "node_rank": 1}, {}):
        refused(
            shardmill(*served.shard_arguments(outputs[0], **options), "--dry-run"),
            "holds the parts of rank 0 of 2 nodes",
        )

    manifests = tmp_path / "manifests"
    manifests.mkdir()
    for rank, output in enumerate(outputs):
        (manifests / f"{rank}.json").write_bytes((output / "manifest.json").read_bytes())
    rows = 0
    for rank, output in enumerate(outputs):
        loader = StreamingTokenLoader(
            StreamingTokenDataset(
                local=output,
                node_local=manifests,
                batch_size=4,
                shuffle=True,
                drop_last=False,
                dp_rank=rank,
                dp_world_size=2,
            )
        )
        for batch in loader:
            rows += int(batch["real"].sum()) if "real" in batch else 4
    assert rows == sum(partition.splits["train"].samples for partition in partitions)
