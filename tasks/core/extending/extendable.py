"""Which datasets can be extended."""

from streaming_ext.dataset.manifest import Manifest
from streaming_ext.errors import UsageError, command
from tasks.core.storage import Storage


def require_extendable(storage: Storage, manifest: Manifest) -> None:
    """Refuse what further parts would make another kind of dataset.

    Raises:
        UsageError: saying why, and what to do.
    """
    spec = manifest.spec
    merge = (
        "merge both without rewriting a shard: "
        f"{command('merge', storage, 'NEW', '--output', 'BOTH')}"
    )
    draw = command("subset", "WHOLE", "--output", "OTHER")
    alike = "with the same tokenizer, lengths, shards and holdout"
    whys = {
        "leaves out copies, and was made by a shardmill that kept no hashes of what stayed": (
            spec.deduplicate is not None and not manifest.digests,
            "Shard all sources in one run into another folder: that dataset can be extended",
        ),
        "is a subset of another dataset, of which it holds what was drawn": (
            spec.subset is not None,
            f"Extend the whole one, and draw from that: {draw}",
        ),
        "was imported from ids, which tell no texts to choose a holdout by": (
            spec.imported is not None,
            f"Import the new files of ids as a dataset of their own, NEW, and {merge}",
        ),
        "was merged of others, of which each may have been made in its own way": (
            bool(manifest.merged),
            f"Shard the new sources as a dataset of their own, NEW, {alike}, and {merge}",
        ),
        "is the share of one node, which does not know the sources of the others": (
            manifest.share is not None,
            "Shard the old and the new sources on every node in one run, into other folders",
        ),
    }
    for why, (holds, instead) in whys.items():
        if holds:
            raise UsageError(f"{storage} {why}: it cannot be extended. {instead}.")
