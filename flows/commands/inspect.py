"""`shardmill inspect`: what a dataset is, and what stands in its samples."""

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from flows.console.consoles import out
from flows.console.output_options import DEFAULT_OUTPUT, OutputOptions
from streaming_ext.dataset.layout import Split
from tasks.core.storage import open_storage


def inspect(
    path: str,
    *,
    sample: Annotated[tuple[int, ...], Parameter(name=("--sample", "-s"))] = (),
    split: Split = "train",
    printing: OutputOptions = DEFAULT_OUTPUT,
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

    with printing.applied():
        storage = open_storage(path)
        if sample:
            samples = decode_samples(storage, split, list(sample))
            printing.result([asdict(each) for each in samples])
            show_samples(samples, out)
        else:
            dataset = describe(storage)
            printing.result(dataset.facts())
            show_dataset(dataset, out)
    return 0
