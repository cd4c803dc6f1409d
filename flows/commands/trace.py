"""`shardmill trace`: which documents a training step held."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from flows.console.consoles import out
from streaming_ext.dataset.layout import Split
from streaming_ext.errors import NothingThereError, UsageError

if TYPE_CHECKING:
    from streaming_ext.streams import TokenStream
    from streaming_ext.token_dataset import StreamingTokenDataset


def trace(
    path: str,
    *more: str,
    step: str | None = None,
    document: str | None = None,
    plan: Annotated[bool, Parameter(negative=())] = False,
    batch_size: int | None = None,
    global_batch: str | None = None,
    ranks: int = 1,
    epoch: int = 0,
    epochs: int = 1,
    epoch_size: str | None = None,
    proportion: list[str] | None = None,
    split: Split = "train",
    sequence_length: str | None = None,
    shuffle: Annotated[bool, Parameter(negative="--no-shuffle")] = True,
    shuffle_seed: int = 9176,
    shuffle_block_size: int = 2**18,
    num_canonical_nodes: int | None = None,
    packing: Literal["best_fit"] | None = None,
    output: str | None = None,
) -> int:
    """Tell which documents, of which source file and row, a training step held, or its plan.

    The options that decide the order are those of `StreamingTokenDataset`; give the values that
    training ran with.

    Parameters
    ----------
    path
        Folder or URL of a dataset.
    more
        Further datasets, where training mixed several.
    step
        Step within the epoch, from 0; `A:B` for all from A to before B.
    document
        In place of `--step`: SOURCE:ROW, a source file (its URL, or the end of it) and the row in
        it; tells the steps of the epoch that hold the document.
    plan
        In place of both: the stages of training with their steps and tokens; `--output plan.svg`
        draws them.
    batch_size
        Sequences a rank and step.
    global_batch
        In place of it, sequences a step over all ranks; also as a schedule in tokens of training,
        `0:768 250B:1536`.
    ranks
        Data-parallel ranks.
    epoch
        Number of the epoch, from 0.
    epochs
        How many a plan has.
    epoch_size
        Sequences an epoch; `64M` for 64 million.
    proportion
        Of each dataset one, in their order: a number, or a schedule in tokens of training,
        `0:0.9 900B:0.9->0.2 1T:0.2`.
    split
        The split that was read.
    sequence_length
        Tokens a sequence; the dataset's own unless given. Also as a schedule in tokens of training,
        `0:512 10B:2048`.
    shuffle
        Whether the order was shuffled.
    shuffle_seed
        Seed of the order.
    shuffle_block_size
        Sequences that were shuffled among each other.
    num_canonical_nodes
        Lanes through the data.
    packing
        How documents were packed into rows, where they were.
    output
        Parquet file to write the documents to, in place of the terminal: what
        `StreamingTokenDataset(exclude=...)` takes. With `--plan`, an SVG file.
    """
    if [step is not None, document is not None, plan].count(True) != 1:
        raise UsageError("Give one of `--step`, `--document` and `--plan`.")
    if (batch_size is None) == (global_batch is None):
        raise UsageError(
            "Give `--batch-size`, the sequences a rank and step, or `--global-batch`, those of all."
        )
    steps = range(0) if step is None else _steps(step)
    source, row = ("", 0) if document is None else _source_and_row(document)
    _require_output(output, document=document is not None, plan=plan)
    try:
        from streaming_ext.token_dataset import StreamingTokenDataset
    except ImportError as error:
        raise UsageError(f"`shardmill trace` needs the extra `train`: {error}.") from error
    from flows.terminal.show_trace import show_trace, show_visits
    from streaming_ext.trace import trace_document, trace_step, write_traces

    with tempfile.TemporaryDirectory() as cache:  # nothing is unpacked for this
        dataset = StreamingTokenDataset(
            streams=_streams([path, *more], proportion, cache),
            split=split,
            sequence_length=sequence_length,
            batch_size=batch_size,
            global_batch=global_batch,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            shuffle_block_size=shuffle_block_size,
            num_canonical_nodes=num_canonical_nodes,
            epoch_size=epoch_size,
            packing=packing,
            dp_rank=0,
            dp_world_size=ranks,
        )
        if plan:
            _tell_plan(dataset, epoch=epoch, epochs=epochs, output=output)
            return 0
        if document is not None:
            show_visits(
                trace_document(dataset, source, row, epoch=epoch), out, streams=len(dataset.streams)
            )
            return 0
        traces = {step: trace_step(dataset, step, epoch=epoch) for step in steps}
    if output is not None:
        out.print(f"{write_traces(traces, output):,} pieces of documents in {output}")
        return 0
    for number, sequences in traces.items():
        if len(traces) > 1:
            out.print(f"step {number}")
        show_trace(sequences, out, streams=len(dataset.streams))
    return 0


def _streams(paths: list[str], proportions: list[str] | None, cache: str) -> "list[TokenStream]":
    """The datasets, of which nothing but what they say of themselves is read."""
    from streaming_ext.streams import TokenStream

    if proportions is not None and len(proportions) != len(paths):
        raise UsageError(
            f"{len(paths)} datasets and {len(proportions)} of `--proportion`: give each one, or "
            "none."
        )
    for path in paths:
        if "://" not in path and not Path(path).is_dir():
            raise NothingThereError(f"{path} is no dataset: it is not there. Is the path right?")
    return [
        TokenStream(
            remote=path if "://" in path else None,
            local=f"{cache}/{number}" if "://" in path else path,
            proportion=None if proportions is None else proportions[number],
        )
        for number, path in enumerate(paths)
    ]


def _steps(text: str) -> range:
    """The steps that `A` or `A:B` stands for."""
    first, colon, stop = text.partition(":")
    if not (first.isdecimal() and (stop.isdecimal() or not colon)):
        raise UsageError(f"`--step` is a number, or A:B for all from A to before B; got {text!r}.")
    steps = range(int(first), int(stop) if colon else int(first) + 1)
    if not steps:
        raise UsageError(f"`--step {text}` holds no step: B must be above A.")
    return steps


def _source_and_row(text: str) -> tuple[str, int]:
    """What `SOURCE:ROW` stands for."""
    source, colon, row = text.rpartition(":")
    if not (source and colon and row.isdecimal()):
        raise UsageError(f"`--document` is SOURCE:ROW, a file and a row in it; got {text!r}.")
    return source, int(row)


def _require_output(output: str | None, *, document: bool, plan: bool) -> None:
    if output is None:
        return
    if document:
        raise UsageError("`--output` goes with `--step` and `--plan`.")
    if plan and not output.endswith(".svg"):
        raise UsageError(f"`--output {output}`: a plan is drawn as SVG. Name the file .svg.")
    if not Path(output).absolute().parent.is_dir():
        raise UsageError(f"`--output {output}`: there is no such folder. Make it first.")


def _tell_plan(
    dataset: "StreamingTokenDataset", *, epoch: int, epochs: int, output: str | None
) -> None:
    """The stages of training: a table on the terminal, or a picture in a file."""
    from flows.terminal.show_training_plan import draw_training_plan, show_training_plan
    from streaming_ext.loading.training_plan import training_plan

    if epoch < 0:
        raise UsageError(f"`--epoch` must be at least 0, got {epoch}.")
    found = training_plan(dataset.plan, dataset.plan.start(epoch), epochs=epochs)
    if output is None:
        show_training_plan(found, out)
        return
    Path(output).write_text(draw_training_plan(found))
    out.print(f"{found.steps:,} steps of {found.tokens:,} tokens in {output}", soft_wrap=True)
