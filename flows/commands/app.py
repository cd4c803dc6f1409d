"""The command line `shardmill`: what its commands are, and how each ends."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.argument import ArgumentCollection

from flows.commands.help import GroupedHelp, default_text
from flows.stops import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    Stopped,
    leave,
    stop_by_signals,
    stop_within,
    taken,
)
from flows.terminal.consoles import err, out, tell
from streaming_ext.base.errors import ShardmillError, UsageError, one_line


def _version() -> str:
    from importlib.metadata import version

    return version("shardmill")


def _config_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    from flows.commands.options import config_file

    config_file(app, commands, arguments)


_ALL = Group("Options")  # one list, which `GroupedHelp` cuts up
app = App(
    name="shardmill",
    help="Raw text datasets to tokenized MDS shards.",
    version=_version,
    console=out,
    config=_config_file,
    group_arguments=_ALL,
    group_parameters=_ALL,
    default_parameter=Parameter(negative=(), show_default=default_text),
    help_on_error=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",  # else it exits by itself, and waits for Prefect's threads
)


# What each command does, how it is called, and two examples. Help is shown without loading any.
_COMMANDS = {
    "shard:shard": (
        (
            "Tokenize files of text, on disk, behind URLs or of the Hub, into MDS shards with a "
            "holdout.\n\n"
            "Run the same command again after any stop: it goes on where it was, to the same "
            "bytes."
        ),
        "SOURCES --output PATH --tokenizer NAME [OPTIONS]",
        "'text/*.parquet' --output data --tokenizer gpt2",
        "ORG/TEXTS --output s3://bucket/data --tokenizer gpt2 --shuffle documents --min-tokens 32",
    ),
    "shard:extend": (
        (
            "Add source files to a published dataset, with the configuration that it was made "
            "with.\n\n"
            "What is there stays as it is; readers see the new parts once all are done. Run the "
            "same command again after any stop: it goes on where it was."
        ),
        "DATASET SOURCES [OPTIONS]",
        "data 'more/*.parquet'",
        "s3://bucket/data 's3://bucket/2026/*.jsonl.zst' --dry-run",
    ),
    "plan:plan": (
        (
            "Tell what a run would make and take: tokens, disk, time, and what decides "
            "the time.\n\n"
            "Nothing is made: some rows of some files are read, tokenized and written to the "
            "temporary folder, on all workers at once, and the rest is reckoned."
        ),
        "SOURCES --tokenizer NAME [OPTIONS]",
        "'text/*.parquet' --tokenizer gpt2",
        "one.parquet --total-size 2TB --tokenizer gpt2 --hosts 16 --link 10Gbit",
    ),
    "whole_datasets:export": (
        (
            "Write a published dataset as another trainer reads it.\n\n"
            "Run the same command again after any stop: it goes on where it was, to the same "
            "bytes."
        ),
        "FORMAT DATASET --output PATH [OPTIONS]",
        "megatron data --output data-megatron",
        "webdataset data --output s3://bucket/tars --rows documents --verify",
    ),
    "whole_datasets:copy": (
        (
            "Copy a dataset or an export from any storage to any other, every byte against its "
            "hash.\n\n"
            "Run the same command again after any stop: it goes on where it was."
        ),
        "DATASET OUTPUT [OPTIONS]",
        "data s3://bucket/data",
        "data s3://bucket/data --verify-only",
    ),
    "whole_datasets:merge": (
        (
            "Make one dataset of several: nothing is tokenized or compressed again.\n\n"
            "Their files become hard links on one disk, and copies that the store makes in one S3 "
            "store."
        ),
        "DATASETS --output PATH [OPTIONS]",
        "english french --output both",
        "s3://bucket/a s3://bucket/b s3://bucket/c --output s3://bucket/all --workers 8",
    ),
    "shard:import_": (
        (
            "Make a dataset of files of ids that another trainer reads, without tokenizing.\n\n"
            "Run the same command again after any stop: it goes on where it was, to the same "
            "bytes."
        ),
        "FORMAT SOURCES --output PATH --tokenizer NAME [OPTIONS]",
        "megatron corpus.bin --output data --tokenizer gpt2",
        "nanogpt 'ids/*.bin' --output data --tokenizer gpt2 --dtype uint16",
    ),
    "whole_datasets:subset": (
        "Make a dataset of some documents of another: exactly so many, with their ids and origins.",
        "DATASET --output PATH (--documents NUMBER | --tokens NUMBER) [OPTIONS]",
        "data --output small --documents 10000",
        "data --output first --tokens 10M --first",
    ),
    "submit:submit": (
        (
            "Run a deployment on a cluster's workers and follow it; Ctrl+C stops all of it, "
            "everywhere."
        ),
        "DEPLOYMENT [NAME=VALUE...] [OPTIONS]",
        "shard-fineweb",
        "shard-fineweb output=s3://bucket/text shuffle=documents",
    ),
    "verify:verify": (
        (
            "Check every byte of a dataset against what it says of itself.\n\n"
            "Of an export, also against the dataset that it was made from: document for document "
            "the same ids."
        ),
        "PATH [OPTIONS]",
        "data",
        "s3://bucket/data --deep --documents 1000",
    ),
    "inspect:inspect": (
        (
            "Show what a dataset is; with --sample, what stands in chosen samples and where it "
            "came from.\n\n"
            "Of an export: its format, and which dataset it was made from."
        ),
        "PATH [OPTIONS]",
        "data",
        "data --sample 0 --sample 17",
    ),
    "trace:trace": (
        (
            "Tell which documents, of which source file and row, a training step held, or its "
            "plan.\n\n"
            "The options that decide the order are those of `StreamingTokenDataset`; give the "
            "values that training ran with."
        ),
        "PATH [MORE...] [OPTIONS]",
        "data --step 1000 --batch-size 8 --ranks 16",
        "data --grep 'needle in a haystack' --batch-size 8",
    ),
    "demo:demo": (
        "Run the main job on text and a vocabulary that are made here, and read a batch back.",
        "[OUTPUT]",
        "",
        "tried/demo",
    ),
}
for path, (words, usage, *examples) in _COMMANDS.items():
    name = path.partition(":")[2].rstrip("_")
    app.command(
        f"flows.commands.{path}",
        name=name,
        help=words,
        usage=f"Usage: shardmill {name} {usage}",
        help_formatter=GroupedHelp(app, name),
        help_epilogue="Examples:\n\n"
        + "\n".join(f"    shardmill {name} {example}".rstrip() for example in examples),
    )
app.register_install_completion_command()


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; with arguments, as a part of another program."""
    given = sys.argv[1:] if arguments is None else arguments

    def command() -> Any:
        _require_no_secrets(given)
        return app(arguments, exit_on_error=False, print_error=False)

    code = _guarded(command)
    if arguments is not None:
        sys.exit(code)
    leave(code)


def _require_no_secrets(arguments: Sequence[str]) -> None:
    """Refuse URLs that hold a secret, whatever command and option they are for.

    Raises:
        UsageError: one does; errors of options that there are not would repeat it.
    """
    if not any(":" in argument for argument in arguments):
        return  # no URL; what looks into them takes a while to load
    from streaming_ext.store.locations import require_no_secret

    option = "an argument"
    for argument in arguments:
        require_no_secret(argument, option)
        name, _, value = argument.partition("=")
        require_no_secret(value, name)
        option = argument if argument.startswith("--") else "an argument"


def _guarded(command: Callable[[], Any]) -> int:
    stop_by_signals()
    try:
        return int(command() or 0)
    except BaseException as error:
        code = _told(error)
        if code is None:
            raise
        return code
    finally:
        taken()


def _told(error: BaseException) -> int | None:
    """Tell what ended a command; returns the exit code, None for what nobody foresaw."""
    if (stop := stop_within(error)) is not None:
        taken()
        err.print("shardmill: stopped. Run the same command again to go on.")
        return stop.exit_code if isinstance(stop, Stopped) else EXIT_INTERRUPTED
    if isinstance(error, CycloptsError):
        from flows.commands.options import explain

        tell(explain(error))
        return EXIT_USAGE
    if isinstance(error, ShardmillError):
        tell(str(error))
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    if isinstance(error, OSError):
        tell(f"{one_line(error)}.")
        return EXIT_FAILED
    return None
