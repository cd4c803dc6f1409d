"""The command line `shardmill`: its commands, and their exit codes."""

import sys
import textwrap
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.argument import ArgumentCollection

from flows.commands.help import GroupedHelp, default_text
from flows.stops import (
    EXIT_FAILED,
    EXIT_TERMINATED,
    EXIT_USAGE,
    handled,
    leave,
    stop_by_signals,
    stop_within,
)
from flows.terminal.printing import err, out, print_problem
from streaming_ext.base.errors import ShardmillError, StoppedError, UsageError, one_line
from streaming_ext.base.extras import extras_named, require


def _config_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    from flows.commands.options import config_file

    config_file(app, commands, arguments)


_ALL = Group("Options")  # one group, which `GroupedHelp` divides
app = App(
    name="shardmill",
    help="Turn text datasets into tokenized MDS shards for training.",
    version=lambda: version("shardmill"),
    version_flags=("--version", "-v"),
    console=out,
    config=_config_file,
    help_format="plaintext",
    group_arguments=_ALL,
    group_parameters=_ALL,
    default_parameter=Parameter(negative=(), show_default=default_text),
    help_on_error=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",  # else cyclopts exits, and waits for Prefect's threads
)
app.help_formatter = GroupedHelp(app)

_RESUME = "\n\nAfter any stop, run the same command again: it resumes, with the same result."
# The description, the usage and two examples of each command, by its module and function. Help is
# printed without loading these modules.
_COMMANDS = {
    "outputs:shard": (
        f"Tokenize text files into MDS shards with a holdout split.{_RESUME}",
        "SOURCES --output PATH --tokenizer NAME [OPTIONS]",
        "'text/*.parquet' --output data --tokenizer gpt2",
        "ORG/TEXTS --output s3://bucket/data --tokenizer gpt2 --shuffle documents --min-tokens 32",
    ),
    "outputs:extend": (
        (
            "Add source files to a published dataset.\n\n"
            "The configuration is that of the dataset. Readers see the new parts once all of them "
            "are done. After any stop, run the same command again: it resumes."
        ),
        "DATASET SOURCES [OPTIONS]",
        "data 'more/*.parquet'",
        "s3://bucket/data 's3://bucket/2026/*.jsonl.zst' --dry-run",
    ),
    "outputs:import_": (
        f"Make a dataset of the token files of another trainer.{_RESUME}",
        "FORMAT SOURCES --output PATH --tokenizer NAME [OPTIONS]",
        "megatron corpus.bin --output data --tokenizer gpt2",
        "nanogpt 'ids/*.bin' --output data --tokenizer gpt2 --dtype uint16",
    ),
    "outputs:export": (
        f"Write a dataset in the format of another trainer.{_RESUME}",
        "FORMAT DATASET --output PATH [OPTIONS]",
        "megatron data --output data-megatron",
        "webdataset data --output s3://bucket/tars --rows documents --verify",
    ),
    "outputs:copy": (
        (
            "Copy a dataset or an export to any storage.\n\n"
            "Every byte is compared with its hash. After any stop, run the same command again: it "
            "resumes."
        ),
        "DATASET OUTPUT [OPTIONS]",
        "data s3://bucket/data",
        "data s3://bucket/data --verify-only",
    ),
    "outputs:merge": (
        (
            "Make one dataset of several, without tokenizing again.\n\n"
            "Files become hard links on one disk, and server-side copies within one S3 store."
        ),
        "DATASETS --output PATH [OPTIONS]",
        "english french --output both",
        "s3://bucket/a s3://bucket/b s3://bucket/c --output s3://bucket/all --workers 8",
    ),
    "outputs:subset": (
        (
            "Make a dataset of some documents of another.\n\n"
            "It holds those for which a condition holds, or exactly this number of documents or "
            "tokens, with their ids and origins."
        ),
        "DATASET --output PATH (--where TEXT | --documents NUMBER | --tokens NUMBER) [OPTIONS]",
        "data --output small --documents 10000",
        "data --output german --where \"language == 'de' and tokens < 900\"",
    ),
    "outputs:annotate": (
        (
            "Add columns to the documents of a dataset.\n\n"
            "Tokens and states of training stay. Readers see the columns once all of them are "
            "there. After any stop, run the same command again."
        ),
        "DATASET TABLE [OPTIONS]",
        "data scores.parquet",
        "s3://bucket/data topics.jsonl --key url --partial",
    ),
    "check:plan": (
        (
            "Estimate tokens, disk and time of a run before it runs.\n\n"
            "A sample of the sources is read, tokenized and written to the temporary folder, on "
            "all workers at once; the rest is extrapolated. No dataset is made."
        ),
        "SOURCES --tokenizer NAME [OPTIONS]",
        "'text/*.parquet' --tokenizer gpt2",
        "one.parquet --total-size 2TB --tokenizer gpt2 --hosts 16 --link 10Gbit",
    ),
    "check:bench": (
        (
            "Measure how this machine tokenizes some files, in one line.\n\n"
            "A sample is tokenized and written to the temporary folder, on all workers at once; "
            "ids are compared with the reference's."
        ),
        "TOKENIZER SOURCES [OPTIONS]",
        "gpt2 'text/*.parquet'",
        "Qwen/Qwen3-0.6B one.jsonl --sample-size 16MiB --json",
    ),
    "check:verify": (
        (
            "Check every byte of a dataset or an export.\n\n"
            "An export is also compared with its dataset, document by document."
        ),
        "PATH [OPTIONS]",
        "data",
        "s3://bucket/data --deep --documents 1000",
    ),
    "check:inspect": (
        (
            "Show what a dataset or an export holds.\n\n"
            "With --sample: the text of single samples, and the source of each document."
        ),
        "PATH [OPTIONS]",
        "data",
        "data --sample 0 --sample 17",
    ),
    "check:check_tokenizer": (
        (
            "Compare the tokenizer of a model with that of a dataset.\n\n"
            "The dataset holds short texts with their ids. Names the first one that differs."
        ),
        "DATASET TOKENIZER [OPTIONS]",
        "data Qwen/Qwen3-0.6B",
        "s3://bucket/data model/tokenizer.json",
    ),
    "trace:trace": (
        (
            "Show which documents a training step held.\n\n"
            "The options that decide the order are those of `StreamingTokenDataset`; give the "
            "values that training ran with."
        ),
        "PATH [MORE...] [OPTIONS]",
        "data --step 1000 --batch-size 8 --ranks 16",
        "data --grep 'needle in a haystack' --batch-size 8",
    ),
    "submit:submit": (
        "Run a deployment on a cluster and follow it.\n\nCtrl+C stops all of it, on every host.",
        "DEPLOYMENT [NAME=VALUE...] [OPTIONS]",
        "shard-fineweb",
        "shard-fineweb output=s3://bucket/text shuffle=documents",
    ),
    "demo:demo": (
        "Make text, shard it, and read a batch back, offline.",
        "[OUTPUT]",
        "",
        "tried/demo",
    ),
}
_WITHOUT_PREFECT = ("check:", "trace:")
_WITH_PREFECT = {
    path.partition(":")[2].rstrip("_")
    for path in _COMMANDS
    if not path.startswith(_WITHOUT_PREFECT)
}


def _to_paste(example: str) -> str:
    """Wrap a command so that its lines fit a terminal of 80 columns."""
    lines = textwrap.wrap(example, 72, break_long_words=False, break_on_hyphens=False)
    return "    " + " \\\n      ".join(lines)


for number, (path, (words, usage, *examples)) in enumerate(_COMMANDS.items()):
    name = path.partition(":")[2].rstrip("_").replace("_", "-")
    app.command(
        f"flows.commands.{path}",
        name=name,
        sort_key=number,
        help=words,
        usage=f"Usage: shardmill {name} {usage}",
        help_formatter=GroupedHelp(app, name),
        help_epilogue="Examples:\n\n"
        + "\n".join(_to_paste(f"shardmill {name} {example}") for example in examples),
    )
app.register_install_completion_command()


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; with `arguments`, as a part of another program."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["help"]:
        given = [*given[1:], "--help"]
    stop_by_signals()
    try:
        _require_no_secrets(given)
        _require_working_folder()
        if given and given[0] in _WITH_PREFECT:
            require("prefect")
        with extras_named():
            code = int(app(given, exit_on_error=False, print_error=False) or 0)
        sys.stdout.flush()  # so that a failed write is an error of the command
    except BaseException as error:
        if (ended := _exit_code(error, given[:1])) is None:
            raise
        code = ended
    finally:
        handled()
    if arguments is not None:
        sys.exit(code)
    leave(code)


def _require_no_secrets(arguments: Sequence[str]) -> None:
    """Refuse a URL with a secret in any argument, because errors about arguments print them.

    Raises:
        UsageError: an argument holds a secret.
    """
    if not any(":" in argument for argument in arguments):
        return  # without a URL, the import below is not needed
    from streaming_ext.store.locations import require_no_secret

    option = "an argument"
    for argument in arguments:
        require_no_secret(argument, option)
        name, _, value = argument.partition("=")
        require_no_secret(value, name)
        option = argument if argument.startswith("--") else "an argument"


def _require_working_folder() -> None:
    """Refuse to start in a deleted folder, where errors of paths and of Prefect name no file.

    Raises:
        UsageError: the folder was deleted.
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder was deleted. Start in one that exists.") from error


def _exit_code(error: BaseException, command: Sequence[str]) -> int | None:
    """Print the error of a command; return the exit code, or None for an unexpected error.

    Args:
        error: the error that ended the command.
        command: the name of the command, if one was given.
    """
    if (stop := stop_within(error)) is not None:
        handled()
        err.print("shardmill: stopped. Run the same command again to resume.")
        return stop.exit_code
    if not isinstance(error, CycloptsError | ShardmillError | OSError):
        return None
    from flows.commands.options import OptionNames, explain

    names = OptionNames(app, command)
    if isinstance(error, CycloptsError):
        print_problem(explain(error, names))
        return EXIT_USAGE
    if isinstance(error, ShardmillError):
        print_problem(names.put_into(str(error)))
        if isinstance(error, StoppedError):
            return EXIT_TERMINATED
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    print_problem(f"{one_line(error)}.")
    return EXIT_FAILED
