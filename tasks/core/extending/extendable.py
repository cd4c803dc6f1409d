"""Which datasets can be extended."""

from streaming_ext.dataset.manifest import Manifest
from streaming_ext.errors import UsageError
from tasks.core.storage import Storage


def require_extendable(storage: Storage, manifest: Manifest) -> None:
    """Refuse what further parts would make another kind of dataset.

    Raises:
        UsageError: saying why, and what to do.
    """
    spec = manifest.spec
    whys = {
        "leaves out copies, and was made by a shardmill that kept no hashes of what stayed": (
            spec.deduplicate is not None and not manifest.digests,
            "Shard all sources in one run into another folder: that dataset can be extended",
        ),
        "is a subset of another dataset": (
            spec.subset is not None,
            "Extend the whole one, and draw a subset of that",
        ),
        "was imported from ids": (
            spec.imported is not None,
            "Import the new files as a dataset of their own, and merge both",
        ),
        "was merged of others": (
            bool(manifest.merged),
            "Shard the new sources as a dataset of their own, and merge that with it",
        ),
        "is the share of one node": (
            manifest.share is not None,
            "Shard the new sources of all nodes in one run",
        ),
    }
    for why, (holds, instead) in whys.items():
        if holds:
            raise UsageError(f"{storage} {why}: it cannot be extended. {instead}.")
