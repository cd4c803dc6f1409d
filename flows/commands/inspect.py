"""`shardmill inspect`: what a dataset is, and what stands in its samples."""

from typing import Annotated

from cyclopts import Parameter

from flows.commands.consoles import out
from streaming_ext.dataset.layout import Split
from tasks.core.storage import open_storage


def inspect(
    path: str,
    *,
    sample: Annotated[tuple[int, ...], Parameter(name=("--sample", "-s"))] = (),
    split: Split = "train",
) -> int:
    """Show what a dataset is; with --sample, what stands in chosen samples and where it came from.

    Parameters
    ----------
    path
        Folder or URL of a dataset.
    sample
        Number of a sample to decode; may be given more than once.
    split
        The split that those samples are of.
    """
    from flows.terminal.show_inspect import show_dataset, show_samples
    from tasks.core.inspect.decode import decode_samples
    from tasks.core.inspect.inspect import describe

    storage = open_storage(path)
    if sample:
        show_samples(decode_samples(storage, split, list(sample)), out)
    else:
        show_dataset(describe(storage), out)
    return 0
