"""`shardmill inspect`: what a dataset is, and what stands in its samples."""

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from flows.commands.options import DEFAULT_OUTPUT, OutputOptions
from flows.terminal.consoles import out
from streaming_ext.format.layout import Split
from streaming_ext.store import open_storage
from tasks.core.derive.export_records import describe_export, is_export


def inspect(
    path: str,
    *,
    sample: Annotated[tuple[int, ...], Parameter(name=("--sample", "-s"))] = (),
    split: Split = "train",
    generation: str | None = None,
    printing: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Show what a dataset is; with --sample, what stands in chosen samples and where it came from.

    Of an export: its format, and which dataset it was made from.

    Parameters
    ----------
    path
        Folder or URL of a dataset or an export.
    sample
        Number of a sample to decode; may be given more than once.
    split
        The split that those samples are of.
    generation
        Of a dataset that was extended: how the hash of its manifest begins; default: the newest.
    """
    from flows.terminal.show_inspect import show_dataset, show_samples
    from tasks.core.check.decode import decode_samples
    from tasks.core.check.inspect import describe

    with printing.applied():
        storage = open_storage(path)
        if not sample and is_export(storage):
            from flows.terminal.show_export import show_export

            export = describe_export(storage)
            printing.result(export.facts())
            show_export(export, out)
        elif sample:
            samples = decode_samples(storage, split, list(sample), generation=generation)
            printing.result([asdict(each) for each in samples])
            show_samples(samples, out)
        else:
            dataset = describe(storage, generation=generation)
            printing.result(dataset.facts())
            show_dataset(dataset, out)
    return 0
