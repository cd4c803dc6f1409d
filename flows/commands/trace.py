"""`shardmill trace`: which documents a training step held."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.text import Text

from flows.console.consoles import out
from flows.console.trace_options import (
    documents_found,
    limits_of,
    require_file,
    source_and_row,
    steps_of,
)
from flows.terminal.visible import visible
from streaming_ext.dataset.layout import Split
from streaming_ext.errors import (
    NothingThereError,
    StorageError,
    UsageError,
    reason_of,
)

if TYPE_CHECKING:
    from streaming_ext.streams import TokenStream
    from streaming_ext.token_dataset import StreamingTokenDataset

_MOST_EPOCHS = 10_000  # of a plan; a line each, or more


def trace(
    path: str,
    *more: str,
    step: str | None = None,
    document: str | None = None,
    text: Path | None = None,
    grep: str | None = None,
    plan: Annotated[bool, Parameter(negative=())] = False,
    batch_size: int | None = None,
    global_batch: str | None = None,
    ranks: int = 1,
    epoch: int = 0,
    epochs: int = 1,
    epoch_size: str | None = None,
    proportion: list[str] | None = None,
    repeat: list[float] | None = None,
    choose: list[int] | None = None,
    max_repeats: list[float] | None = None,
    at_max_repeats: Literal["error", "renormalize"] = "error",
    batching_method: str = "random",
    exclude: str | None = None,
    generation: list[str] | None = None,
    split: Split = "train",
    sequence_length: str | None = None,
    shuffle: Annotated[bool, Parameter(negative="--no-shuffle")] = True,
    shuffle_seed: int = 9176,
    shuffle_block_size: int = 2**18,
    num_canonical_nodes: int | None = None,
    drop_last: Annotated[bool | None, Parameter(negative="--no-drop-last")] = None,
    packing: Literal["best_fit"] | None = None,
    document_multiple: int | None = None,
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
    text
        In place of it: a file of text; tells the steps that hold documents of exactly this text,
        or of it without its last line break.
    grep
        In place of it: words; tells the steps that hold the documents with these words in them,
        letter by letter. All shards are read for this.
    plan
        In place of these: the stages of training with their steps and tokens; `--output plan.svg`
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
        How many a plan has, or are looked at for a document.
    epoch_size
        Sequences an epoch; `64M` for 64 million.
    proportion
        Of each dataset one, in their order: a number, or a schedule in tokens of training,
        `0:0.9 900B:0.9->0.2 1T:0.2`.
    repeat
        In place of `--proportion`, of each dataset one: how often an epoch passes over it.
    choose
        In place of it, of each dataset one: sequences of it an epoch.
    max_repeats
        Of each dataset one, in their order: how often training may pass over it; `inf` for any
        number.
    at_max_repeats
        What training did where a dataset reached it.
    batching_method
        How steps were made of several datasets: `random`, `stratified`, `per_stream`,
        `device_per_stream` or `device_per_stream:8`.
    exclude
        Parquet file of documents that training left out, where it did.
    generation
        Of each dataset one, in their order, where one was extended since: how the hash of the
        manifest begins that training read; the newest unless given.
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
    drop_last
        Whether an epoch's last step was left out where it was less than a global batch: by default
        so, except for the holdout split.
    packing
        How documents were packed into rows, where they were.
    document_multiple
        Of tokens that each document took in a packed row, where they were padded to one.
    output
        Parquet file to write the documents to, in place of the terminal: what
        `StreamingTokenDataset(exclude=...)` takes. With `--plan`, an SVG file.
    """
    asked = [step is not None, document is not None, text is not None, grep is not None, plan]
    if asked.count(True) != 1:
        raise UsageError("Give one of `--step`, `--document`, `--text`, `--grep` and `--plan`.")
    if (batch_size is None) == (global_batch is None):
        raise UsageError(
            "Give `--batch-size`, the sequences a rank and step, or `--global-batch`, those of all."
        )
    if not 1 <= epochs <= _MOST_EPOCHS:
        raise UsageError(f"`--epochs` must be from 1 to {_MOST_EPOCHS:,}, got {epochs}.")
    steps = range(0) if step is None else steps_of(step)
    asked_for = [] if document is None else [source_and_row(document)]
    require_file(output, document=step is None and not plan, plan=plan)
    try:
        from streaming_ext.token_dataset import StreamingTokenDataset
    except ImportError as error:
        raise UsageError(f"`shardmill trace` needs the extra `train`: {error}.") from error
    from flows.terminal.show_trace import show_trace
    from streaming_ext.trace import trace_step, write_traces

    with tempfile.TemporaryDirectory() as cache:  # nothing is unpacked for this
        dataset = StreamingTokenDataset(
            streams=_streams(
                [path, *more],
                cache,
                proportion=proportion,
                repeat=repeat,
                choose=choose,
                max_repeats=limits_of(max_repeats),
                generation=generation,
            ),
            at_max_repeats=at_max_repeats,
            batching_method=batching_method,
            exclude=exclude,
            split=split,
            sequence_length=sequence_length,
            batch_size=batch_size,
            global_batch=global_batch,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            shuffle_block_size=shuffle_block_size,
            num_canonical_nodes=num_canonical_nodes,
            epoch_size=epoch_size,
            drop_last=drop_last,
            packing=packing,
            document_multiple=document_multiple,
            dp_rank=0,
            dp_world_size=ranks,
        )
        if plan:
            _tell_plan(dataset, epoch=epoch, epochs=epochs, output=output)
            return 0
        if step is None:
            documents = asked_for or documents_found(dataset.streams, split, text, grep)
            looked_at = range(epoch, epoch + epochs)
            _tell_visits(dataset, documents, looked_at, named=not asked_for)
            return 0
        traces = {step: trace_step(dataset, step, epoch=epoch) for step in steps}
    if output is not None:
        with _writing(output):
            count = write_traces(traces, output)
        out.print(f"{count:,} pieces of documents in {output}")
        return 0
    for number, sequences in traces.items():
        if len(traces) > 1:
            out.print(f"step {number}")
        show_trace(sequences, out, streams=len(dataset.streams))
    return 0


def _streams(paths: list[str], cache: str, **of_each: Sequence[Any] | None) -> "list[TokenStream]":
    """The datasets, of which nothing but what they say of themselves is read.

    Args:
        paths: of the datasets.
        cache: folder for those that lie elsewhere.
        of_each: arguments of streams that are told by an option of the same name, of each dataset
            one.
    """
    from streaming_ext.streams import TokenStream

    told = {name: given for name, given in of_each.items() if given is not None}
    for name, given in told.items():
        if len(given) != len(paths):
            raise UsageError(
                f"{len(paths)} datasets and {len(given)} of `--{name.replace('_', '-')}`: give "
                "each one, or none."
            )
    for path in paths:
        if "://" not in path and not Path(path).is_dir():
            raise NothingThereError(f"{path} is no dataset: it is not there. Is the path right?")
    return [
        TokenStream(
            remote=path if "://" in path else None,
            local=f"{cache}/{number}" if "://" in path else path,
            **{name: given[number] for name, given in told.items()},
        )
        for number, path in enumerate(paths)
    ]


def _tell_visits(
    dataset: "StreamingTokenDataset",
    documents: list[tuple[str, int]],
    epochs: range,
    *,
    named: bool,
) -> None:
    """The steps of some epochs that hold each of some documents."""
    from flows.terminal.show_trace import show_visits
    from streaming_ext.trace import trace_document

    for source, row in documents:
        if named:
            out.print(Text(visible(f"{source} row {row}"), style="bold cyan"), soft_wrap=True)
        for epoch in epochs:
            visits = trace_document(dataset, source, row, epoch=epoch)
            if len(epochs) > 1:
                out.print(f"epoch {epoch}")
            show_visits(visits, out, streams=len(dataset.streams))


@contextmanager
def _writing(output: str) -> Iterator[None]:
    """Say which file it was that could not be written."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"Cannot write {output}: {reason_of(error)}.") from error


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
    drawing = draw_training_plan(found)
    with _writing(output):
        Path(output).write_text(drawing)
    out.print(f"{found.steps:,} steps of {found.tokens:,} tokens in {output}", soft_wrap=True)
