"""The command `shardmill trace`, which shows the documents of a training step."""

import dataclasses
import re
import tempfile
from collections.abc import Sequence
from inspect import getdoc
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast, get_args, get_type_hints

from cyclopts import Parameter
from pydantic import Field, create_model, model_validator

from flows.terminal.printing import out, say, show_table
from streaming_ext.base.errors import MissingFolderError, UsageError, one_line, option_name
from streaming_ext.order.settings import OrderSettings
from streaming_ext.store import open_storage
from streaming_ext.store.locations import local_path
from streaming_ext.text.options import Options

if TYPE_CHECKING:
    from streaming_ext.format.layout import Split
    from streaming_ext.format.provenance import SourceRow
    from streaming_ext.training.arguments import TokenStream
    from streaming_ext.training.token_dataset import StreamingTokenDataset

_SETTINGS = dataclasses.fields(OrderSettings)
_MOST_DOCUMENTS = 100  # that a search may find, since nobody reads more


class Question(Options):
    """The datasets, and what to find in them."""

    heading: ClassVar[str] = "Options"

    path: str
    """Folder or URL of a dataset."""
    more: tuple[str, ...] = ()
    """Further datasets, if training mixed several."""
    step: Annotated[str | None, Field(pattern=r"^\d+(:\d+)?$")] = None
    """Step of the epoch, from 0; A:B for the steps from A to before B."""
    document: Annotated[str | None, Field(pattern=r"^.+:\d+$")] = None
    """Find the steps that held a document: SOURCE:ROW, a URL or the end of one, and a row."""
    text: Path | None = None
    """Find the steps that held documents of exactly the text in this file."""
    grep: str | None = None
    """Find the steps that held documents with these words. Reads all shards."""
    plan: bool = False
    """Show the phases of training with their steps and tokens."""
    epoch: Annotated[int, Field(ge=0)] = 0
    """Epoch, from 0."""
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of epochs to plan or to search."""
    ranks: int = 1
    """Number of data-parallel ranks."""
    output: str | None = None
    """Write the documents to a Parquet file, as `exclude` reads it; the plan to an SVG file."""

    @model_validator(mode="after")
    def _one_question(self) -> Self:
        names = ("step", "document", "text", "grep", "plan")
        if sum(getattr(self, name) not in {None, False} for name in names) != 1:
            raise ValueError(f"give one of {', '.join(map(option_name, names))}")
        if self.step is not None and not self.steps:
            raise ValueError(f"--step {self.step} holds no step: B must be above A")
        if self.output is not None and self.step is None and not self.plan:
            raise ValueError("--output goes with --step and --plan")
        if self.plan and not (self.output or ".svg").endswith(".svg"):
            raise ValueError(f"--output {self.output}: a plan is drawn as SVG. Name the file .svg")
        return self

    @property
    def steps(self) -> range:
        """The steps that `--step` names."""
        first, colon, stop = (self.step or "0:0").partition(":")
        return range(int(first), int(stop) if colon else int(first) + 1)


class Streams(Options):
    """The mixture of several datasets."""

    heading: ClassVar[str] = "Mixture"

    proportion: tuple[str, ...] = ()
    """Proportion of each dataset, or its schedule: `0:0.9 900B:0.2`."""
    repeat: tuple[float, ...] = ()
    """Passes of an epoch over each dataset, in place of `--proportion`."""
    choose: tuple[int, ...] = ()
    """Sequences of an epoch from each dataset, in place of `--proportion`."""
    max_repeats: tuple[float, ...] = ()
    """Most passes of training over each dataset; `inf` for any number."""
    where: tuple[str, ...] = ()
    """Condition that the documents of each dataset meet; an empty one for all documents."""
    generation: tuple[str, ...] = ()
    """Start of the hash of the manifest of each dataset that training read."""


def _as_option(setting: dataclasses.Field[Any]) -> Any:
    """Return the type of an argument of the dataset, and its default with its description."""
    kind = get_type_hints(OrderSettings)[setting.name]
    if bool in (kind, *get_args(kind)):
        kind = Annotated[kind, Parameter(negative=option_name(f"no_{setting.name}"))]
    described = re.search(
        rf"^ +{setting.name}: (.*(?:\n {{8}}.*)*)", getdoc(OrderSettings) or "", re.MULTILINE
    )
    text = " ".join(described[1].split()) if described else ""
    return kind, Field(setting.default, description=text[:1].upper() + text[1:])


# The arguments of `StreamingTokenDataset` that decide the order, as they are declared there.
Order = create_model(
    "Order",
    __base__=Options,
    **{each.name: _as_option(each) for each in _SETTINGS},
)
Order.heading = "Order"


class TraceConfig(Order, Streams, Question):
    """The question, and the settings that training ran with."""

    arguments: ClassVar[tuple[str, ...]] = ("path", "more")

    @property
    def order(self) -> OrderSettings:
        """The settings of the order, with the defaults of the dataset."""
        return OrderSettings(**{each.name: getattr(self, each.name) for each in _SETTINGS})

    @model_validator(mode="after")
    def _batch_is_given(self) -> Self:
        if not self.order.names_batch:
            raise ValueError(
                "give --batch-size, sequences per rank and step, or --global-batch, those of all"
            )
        return self


def trace(config: Annotated[TraceConfig, Parameter(name="*")]) -> int:
    """Show which documents, by source file and row, a training step held."""
    from streaming_ext.training.token_dataset import StreamingTokenDataset

    with tempfile.TemporaryDirectory() as cache:  # no shard is unpacked for this
        dataset = StreamingTokenDataset(
            streams=_streams(config, cache),
            dp_rank=0,
            dp_world_size=config.ranks,
            **dataclasses.asdict(config.order),
        )
        if config.plan:
            _show_plan(dataset, config)
        elif config.step is None:
            _show_visits(dataset, config)
        else:
            _show_steps(dataset, config)
    return 0


def _streams(config: TraceConfig, cache: str) -> "list[TokenStream]":
    """Return the streams of the datasets, of which only manifests and records are read."""
    from streaming_ext.training.arguments import TokenStream

    paths = [config.path, *config.more]
    given: dict[str, Sequence[Any]] = {
        name: values for name in Streams.model_fields if (values := getattr(config, name))
    }
    for name, values in given.items():
        if len(values) != len(paths):
            raise UsageError(
                f"{len(paths)} datasets and {len(values)} of `{option_name(name)}`: give one for "
                "each dataset, or none."
            )
    if "max_repeats" in given:
        given["max_repeats"] = [None if each == inf else each for each in given["max_repeats"]]
    if "where" in given:
        given["where"] = [each or None for each in given["where"]]
    for path in paths:
        if "://" not in path and not Path(path).is_dir():
            raise MissingFolderError(f"{path} is no dataset: the folder does not exist.")
    return [
        TokenStream(
            remote=path if "://" in path else None,
            local=f"{cache}/{number}" if "://" in path else path,
            **{name: values[number] for name, values in given.items()},
        )
        for number, path in enumerate(paths)
    ]


def _show_steps(dataset: "StreamingTokenDataset", config: TraceConfig) -> None:
    """Show the documents of some steps on the terminal, or write them to a Parquet file."""
    from streaming_ext.training.features.trace import trace_step, write_traces

    traces = {step: trace_step(dataset, step, epoch=config.epoch) for step in config.steps}
    if config.output is not None:
        count = write_traces(traces, config.output)
        say(out, f"{count:,} spans of documents in {config.output}")
        return
    for step, sequences in traces.items():
        if len(traces) > 1:
            say(out, f"step {step}")
        for trace in sequences:
            say(out, _sequence(trace, dataset), style="bold cyan")
            for span in trace.spans:
                tokens = f"{span.tokens} tokens of {span.document}, from its token {span.first} on"
                say(out, f"  token {span.position}: {tokens}")


def _show_visits(dataset: "StreamingTokenDataset", config: TraceConfig) -> None:
    """Show the steps of some epochs that hold the requested documents."""
    from streaming_ext.training.features.trace import trace_document

    for source, row in _documents(dataset.streams, config):
        if config.document is None:
            say(out, f"{source} row {row}", style="bold cyan")
        for epoch in range(config.epoch, config.epoch + config.epochs):
            if config.epochs > 1:
                say(out, f"epoch {epoch}")
            visits = trace_document(dataset, source, row, epoch=epoch)
            if not visits:
                say(out, "No step of this epoch holds it: it is left out, or after the last step.")
            for visit in visits:
                span = visit.span
                where = f"step {visit.step}, {_sequence(visit, dataset)}, token {span.position}"
                say(out, f"{where}: {span.tokens} tokens of it, from its token {span.first} on")


def _sequence(found: Any, dataset: "StreamingTokenDataset") -> str:
    """Describe the rank and sequence of a trace or a visit, and its stream if there are several."""
    stream = f" of stream {found.stream}" if len(dataset.streams) > 1 else ""
    return f"rank {found.rank}: sequence {found.sequence}{stream}"


def _documents(streams: "Sequence[TokenStream]", config: TraceConfig) -> list[tuple[str, int]]:
    """Return source and row of the requested documents.

    Raises:
        UsageError: there are none, or too many to read.
    """
    from tasks.core.check.decode import find_documents

    if config.document is not None:
        source, _, row = config.document.rpartition(":")
        return [(source, int(row))]
    option = f"--text {config.text}" if config.grep is None else f"--grep {config.grep!r}"
    wanted = {config.grep or "": False}  # text -> True if it must be the whole document
    if config.text is not None:
        try:
            text = local_path(config.text).read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"`{option}` cannot be read: {one_line(error)}.") from error
        wanted = {text: True, text.removesuffix("\n"): True}  # an editor may add a line break
    found: list[SourceRow] = []
    split = cast("Split", config.order.split)  # the dataset that was opened has it
    for url, generation in dict.fromkeys((each.url, each.generation) for each in streams):
        storage = open_storage(url)
        for words, is_all in wanted.items():
            holding = find_documents(storage, split, words, is_all=is_all, generation=generation)
            found += islice(holding, _MOST_DOCUMENTS + 1)
    if not found:
        raise UsageError(f"`{option}`: no document of split {split!r}.")
    if len(found) > _MOST_DOCUMENTS:
        raise UsageError(f"`{option}`: more than {_MOST_DOCUMENTS} documents. Give more words.")
    return list(dict.fromkeys((document.source, document.row) for document in found))


def _show_plan(dataset: "StreamingTokenDataset", config: TraceConfig) -> None:
    """Show the phases of training as a table on the terminal, or as a picture in a file."""
    from streaming_ext.training.features.training_plan import training_plan

    plan = training_plan(dataset.plan, dataset.plan.start(config.epoch), epochs=config.epochs)
    if config.output is None:
        columns, *rows = plan.rows()
        show_table([dict(zip(columns, row, strict=True)) for row in rows], out)
        return
    from flows.terminal.pictures import draw_training_plan

    Path(config.output).write_text(draw_training_plan(plan))
    say(out, f"{plan.steps:,} steps of {plan.tokens:,} tokens in {config.output}")
