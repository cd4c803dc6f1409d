"""`shardmill trace`: which documents a training step held."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from cyclopts import Parameter
from pydantic import Field, model_validator

from flows.terminal.consoles import out
from flows.terminal.visible import say
from streaming_ext.base.errors import (
    NothingThereError,
    StorageError,
    UsageError,
    one_line,
    reason_of,
)
from streaming_ext.format.layout import Split
from streaming_ext.store import open_storage
from streaming_ext.store.locations import local_path
from streaming_ext.text.options import Options

if TYPE_CHECKING:
    from streaming_ext.format.provenance import Place
    from streaming_ext.training.streams import TokenStream
    from streaming_ext.training.token_dataset import StreamingTokenDataset

_MOST_DOCUMENTS = 100  # that words are looked for in; more are none that somebody would read


class Wanted(Options):
    """What is told."""

    heading: ClassVar[str] = "Options"

    path: Annotated[str, Field(description="Folder or URL of a dataset.")]
    more: Annotated[
        tuple[str, ...], Field(description="Further datasets, where training mixed several.")
    ] = ()
    step: Annotated[
        str | None,
        Field(
            pattern=r"^\d+(:\d+)?$",
            description="Step within the epoch, from 0; `A:B` for all from A to before B.",
        ),
    ] = None
    document: Annotated[
        str | None,
        Field(
            pattern=r"^.+:\d+$",
            description="In place of `--step`: SOURCE:ROW, a source file (its URL, or the end of "
            "it) and the row in it; tells the steps of the epoch that hold the document.",
        ),
    ] = None
    text: Annotated[
        Path | None,
        Field(
            description="In place of it: a file of text; tells the steps that hold documents of "
            "exactly this text, or of it without its last line break."
        ),
    ] = None
    grep: Annotated[
        str | None,
        Field(
            description="In place of it: words; tells the steps that hold the documents with these "
            "words in them, letter by letter. All shards are read for this."
        ),
    ] = None
    plan: Annotated[
        bool,
        Field(
            description="In place of these: the stages of training with their steps and tokens; "
            "`--output plan.svg` draws them."
        ),
    ] = False
    epoch: Annotated[int, Field(description="Number of the epoch, from 0.")] = 0
    epochs: Annotated[
        int,
        Field(ge=1, le=10_000, description="How many a plan has, or are looked at for a document."),
    ] = 1
    ranks: Annotated[int, Field(description="Data-parallel ranks.")] = 1
    output: Annotated[
        str | None,
        Field(
            description="Parquet file to write the documents to, in place of the terminal: what "
            "`StreamingTokenDataset(exclude=...)` takes. With `--plan`, an SVG file."
        ),
    ] = None

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        asked = {
            "--step": self.step,
            "--document": self.document,
            "--text": self.text,
            "--grep": self.grep,
            "--plan": self.plan or None,
        }
        if sum(value is not None for value in asked.values()) != 1:
            raise ValueError(f"give one of {', '.join(asked)}")
        if self.step is not None and not self.steps:
            raise ValueError(f"--step {self.step} holds no step: B must be above A")
        if self.output is None:
            return self
        file = Path(self.output).absolute()
        if self.step is None and not self.plan:
            raise ValueError("--output goes with --step and --plan")
        if self.plan and file.suffix != ".svg":
            raise ValueError(f"--output {file}: a plan is drawn as SVG. Name the file .svg")
        if not file.parent.is_dir() or file.is_dir():
            raise ValueError(f"--output {file} is no file in a folder that there is")
        return self

    @property
    def steps(self) -> range:
        """The steps that are asked for."""
        first, colon, stop = (self.step or "0:0").partition(":")
        return range(int(first), int(stop) if colon else int(first) + 1)


class Streams(Options):
    """How several datasets were mixed."""

    heading: ClassVar[str] = "Mixture"

    proportion: Annotated[
        tuple[str, ...],
        Field(
            description="Of each dataset one, in their order: a number, or a schedule in tokens of "
            "training, `0:0.9 900B:0.9->0.2 1T:0.2`."
        ),
    ] = ()
    repeat: Annotated[
        tuple[float, ...],
        Field(
            description="In place of `--proportion`, of each dataset one: how often an epoch "
            "passes over it."
        ),
    ] = ()
    choose: Annotated[
        tuple[int, ...],
        Field(description="In place of it, of each dataset one: sequences of it an epoch."),
    ] = ()
    max_repeats: Annotated[
        tuple[float, ...],
        Field(
            description="Of each dataset one, in their order: how often training may pass over it; "
            "`inf` for any number."
        ),
    ] = ()
    generation: Annotated[
        tuple[str, ...],
        Field(
            description="Of each dataset one, in their order, where one was extended since: how "
            "the hash of the manifest begins that training read; the newest unless given."
        ),
    ] = ()


class Order(Options):
    """Arguments of `StreamingTokenDataset` that decide the order."""

    heading: ClassVar[str] = "Order"

    batch_size: Annotated[int | None, Field(description="Sequences a rank and step.")] = None
    global_batch: Annotated[
        str | None,
        Field(
            description="In place of it, sequences a step over all ranks; also as a schedule in "
            "tokens of training, `0:768 250B:1536`."
        ),
    ] = None
    epoch_size: Annotated[
        str | None, Field(description="Sequences an epoch; `64M` for 64 million.")
    ] = None
    at_max_repeats: Annotated[
        Literal["error", "renormalize"],
        Field(description="What training did where a dataset reached it."),
    ] = "error"
    batching_method: Annotated[
        str,
        Field(
            description="How steps were made of several datasets: `random`, `stratified`, "
            "`per_stream` or `device_per_stream`."
        ),
    ] = "random"
    exclude: Annotated[
        str | None,
        Field(description="Parquet file of documents that training left out, where it did."),
    ] = None
    split: Annotated[Split, Field(description="The split that was read.")] = "train"
    sequence_length: Annotated[
        str | None,
        Field(
            description="Tokens a sequence; the dataset's own unless given. Also as a schedule in "
            "tokens of training, `0:512 10B:2048`."
        ),
    ] = None
    shuffle: Annotated[
        bool,
        Parameter(negative="--no-shuffle"),
        Field(description="Whether the order was shuffled."),
    ] = True
    shuffle_seed: Annotated[int, Field(description="Seed of the order.")] = 9176
    shuffle_block_size: Annotated[
        int, Field(description="Sequences that were shuffled among each other.")
    ] = 2**18
    num_canonical_nodes: Annotated[int | None, Field(description="Lanes through the data.")] = None
    drop_last: Annotated[
        bool | None,
        Parameter(negative="--no-drop-last"),
        Field(
            description="Whether an epoch's last step was left out where it was less than a global "
            "batch: by default so, except for the holdout split."
        ),
    ] = None
    packing: Annotated[
        Literal["best_fit"] | None,
        Field(description="How documents were packed into rows, where they were."),
    ] = None
    document_multiple: Annotated[
        int | None,
        Field(
            description="Of tokens that each document took in a packed row, where they were padded "
            "to one."
        ),
    ] = None

    @model_validator(mode="after")
    def _one_batch(self) -> Self:
        if (self.batch_size is None) == (self.global_batch is None):
            raise ValueError(
                "give --batch-size, the sequences a rank and step, or --global-batch, those of all"
            )
        return self


class TraceConfig(Order, Streams, Wanted):
    """What is told of training, and how it went."""

    arguments: ClassVar[tuple[str, ...]] = ("path", "more")


def trace(config: Annotated[TraceConfig, Parameter(name="*")]) -> int:
    """Tell which documents, of which source file and row, a training step held, or its plan.

    The options that decide the order are those of `StreamingTokenDataset`; give the values that
    training ran with.
    """
    try:
        from streaming_ext.training.token_dataset import StreamingTokenDataset
    except ImportError as error:
        raise UsageError(f"`shardmill trace` needs the extra `train`: {error}.") from error
    from flows.terminal.show_trace import show_trace
    from streaming_ext.training.trace import trace_step, write_traces

    order = {name: getattr(config, name) for name in Order.model_fields}
    with tempfile.TemporaryDirectory() as cache:  # nothing is unpacked for this
        dataset = StreamingTokenDataset(
            streams=_streams(config, cache), dp_rank=0, dp_world_size=config.ranks, **order
        )
        if config.plan:
            _tell_plan(dataset, config)
            return 0
        if config.step is None:
            _tell_visits(dataset, config)
            return 0
        traces = {step: trace_step(dataset, step, epoch=config.epoch) for step in config.steps}
    if config.output is not None:
        with _writing(config.output):
            count = write_traces(traces, config.output)
        out.print(f"{count:,} pieces of documents in {config.output}")
        return 0
    for number, sequences in traces.items():
        if len(traces) > 1:
            out.print(f"step {number}")
        show_trace(sequences, out, streams=len(dataset.streams))
    return 0


def _streams(config: TraceConfig, cache: str) -> "list[TokenStream]":
    """The datasets, of which nothing but what they say of themselves is read."""
    from streaming_ext.training.streams import TokenStream

    paths = [config.path, *config.more]
    given: dict[str, Sequence[Any]] = {
        name: values for name in Streams.model_fields if (values := getattr(config, name))
    }
    for name, values in given.items():
        if len(values) != len(paths):
            raise UsageError(
                f"{len(paths)} datasets and {len(values)} of `--{name.replace('_', '-')}`: give "
                "each one, or none."
            )
    if "max_repeats" in given:
        given["max_repeats"] = [None if each == inf else each for each in given["max_repeats"]]
    for path in paths:
        if "://" not in path and not Path(path).is_dir():
            raise NothingThereError(f"{path} is no dataset: it is not there. Is the path right?")
    return [
        TokenStream(
            remote=path if "://" in path else None,
            local=f"{cache}/{number}" if "://" in path else path,
            **{name: values[number] for name, values in given.items()},
        )
        for number, path in enumerate(paths)
    ]


def _documents(streams: "Sequence[TokenStream]", config: TraceConfig) -> list[tuple[str, int]]:
    """Source and row of the documents that are asked for.

    Raises:
        UsageError: there is none, or more than one would read of.
    """
    from tasks.core.check.search import find_documents

    if config.document is not None:
        source, _, row = config.document.rpartition(":")
        return [(source, int(row))]
    asked = f"--text {config.text}" if config.grep is None else f"--grep {config.grep!r}"
    texts: list[str] = []
    if config.text is not None:
        try:
            whole = local_path(config.text).read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"`{asked}` cannot be read: {one_line(error)}.") from error
        texts = list(dict.fromkeys([whole, whole.removesuffix("\n")]))  # as editors have it
    places: list[Place] = []
    for stream in streams:
        storage, of = open_storage(stream.place), {"generation": stream.generation}
        for text in texts:
            places += find_documents(storage, config.split, text, is_all=True, **of)
        if config.grep is not None:
            holding = find_documents(storage, config.split, config.grep, is_all=False, **of)
            places += islice(holding, _MOST_DOCUMENTS + 1)
    if not places:
        raise UsageError(f"`{asked}`: no document of split {config.split!r}.")
    if len(places) > _MOST_DOCUMENTS:
        raise UsageError(f"`{asked}`: more than {_MOST_DOCUMENTS} documents. Give more words.")
    return list(dict.fromkeys((place.source, place.row) for place in places))


def _tell_visits(dataset: "StreamingTokenDataset", config: TraceConfig) -> None:
    """The steps of some epochs that hold each of the documents that are asked for."""
    from flows.terminal.show_trace import show_visits
    from streaming_ext.training.trace import trace_document

    for source, row in _documents(dataset.streams, config):
        if config.document is None:
            say(out, f"{source} row {row}", style="bold cyan")
        for epoch in range(config.epoch, config.epoch + config.epochs):
            visits = trace_document(dataset, source, row, epoch=epoch)
            if config.epochs > 1:
                out.print(f"epoch {epoch}")
            show_visits(visits, out, streams=len(dataset.streams))


@contextmanager
def _writing(output: str) -> Iterator[None]:
    """Say which file it was that could not be written."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"Cannot write {output}: {reason_of(error)}.") from error


def _tell_plan(dataset: "StreamingTokenDataset", config: TraceConfig) -> None:
    """The stages of training: a table on the terminal, or a picture in a file."""
    from flows.terminal.show_training_plan import draw_training_plan, show_training_plan
    from streaming_ext.training.training_plan import training_plan

    if config.epoch < 0:
        raise UsageError(f"`--epoch` must be at least 0, got {config.epoch}.")
    found = training_plan(dataset.plan, dataset.plan.start(config.epoch), epochs=config.epochs)
    if config.output is None:
        show_training_plan(found, out)
        return
    drawing = draw_training_plan(found)
    with _writing(config.output):
        Path(config.output).write_text(drawing)
    steps = f"{found.steps:,} steps of {found.tokens:,} tokens"
    out.print(f"{steps} in {config.output}", soft_wrap=True)
