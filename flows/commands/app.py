"""The command line `shardmill`: what its commands are, and how each ends."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter

from flows.commands.demo import demo
from flows.commands.inspect import inspect
from flows.commands.plan import plan
from flows.commands.shard import extend, import_, shard
from flows.commands.submit import submit
from flows.commands.trace import trace
from flows.commands.verify import verify
from flows.commands.whole_datasets import copy, export, merge, subset
from flows.console.config_file import config_file
from flows.console.consoles import err, out, tell
from flows.console.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from flows.console.explain import explain
from flows.console.help import GroupedHelp, default_text
from flows.stops import Stopped, leave, stop_by_signals, stop_within, taken
from streaming_ext.errors import ShardmillError, UsageError, one_line
from streaming_ext.storage.secrets import require_no_secret


def _version() -> str:
    from importlib.metadata import version

    return version("shardmill")


_ALL = Group("Options")  # one list, which `GroupedHelp` cuts up
app = App(
    name="shardmill",
    help="Raw text datasets to tokenized MDS shards.",
    version=_version,
    console=out,
    config=config_file,
    group_arguments=_ALL,
    group_parameters=_ALL,
    default_parameter=Parameter(negative=(), show_default=default_text),
    help_on_error=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",  # else it exits by itself, and waits for Prefect's threads
)


# How each command is called, and two examples.
_USAGE: dict[Callable[..., int], tuple[str, str, str]] = {
    shard: (
        "SOURCES --output PATH --tokenizer NAME [OPTIONS]",
        "'text/*.parquet' --output data --tokenizer gpt2",
        "ORG/TEXTS --output s3://bucket/data --tokenizer gpt2 --shuffle documents --min-tokens 32",
    ),
    extend: (
        "DATASET SOURCES [OPTIONS]",
        "data 'more/*.parquet'",
        "s3://bucket/data 's3://bucket/2026/*.jsonl.zst' --dry-run",
    ),
    plan: (
        "SOURCES --tokenizer NAME [OPTIONS]",
        "'text/*.parquet' --tokenizer gpt2",
        "one.parquet --total-size 2TB --tokenizer gpt2 --hosts 16 --link 10Gbit",
    ),
    export: (
        "FORMAT DATASET --output PATH [OPTIONS]",
        "megatron data --output data-megatron",
        "webdataset data --output s3://bucket/tars --rows documents --verify",
    ),
    copy: (
        "DATASET OUTPUT [OPTIONS]",
        "data s3://bucket/data",
        "data s3://bucket/data --verify-only",
    ),
    merge: (
        "DATASETS --output PATH [OPTIONS]",
        "english french --output both",
        "s3://bucket/a s3://bucket/b s3://bucket/c --output s3://bucket/all --workers 8",
    ),
    import_: (
        "FORMAT SOURCES --output PATH --tokenizer NAME [OPTIONS]",
        "megatron corpus.bin --output data --tokenizer gpt2",
        "nanogpt 'ids/*.bin' --output data --tokenizer gpt2 --dtype uint16",
    ),
    subset: (
        "DATASET --output PATH (--documents NUMBER | --tokens NUMBER) [OPTIONS]",
        "data --output small --documents 10000",
        "data --output first --tokens 10M --first",
    ),
    submit: (
        "DEPLOYMENT [NAME=VALUE...] [OPTIONS]",
        "shard-fineweb",
        "shard-fineweb output=s3://bucket/text shuffle=documents",
    ),
    verify: ("PATH [OPTIONS]", "data", "s3://bucket/data --deep --documents 1000"),
    inspect: ("PATH [OPTIONS]", "data", "data --sample 0 --sample 17"),
    trace: (
        "PATH [MORE...] [OPTIONS]",
        "data --step 1000 --batch-size 8 --ranks 16",
        "data --grep 'needle in a haystack' --batch-size 8",
    ),
    demo: ("[OUTPUT]", "", "tried/demo"),
}
for command, (usage, *examples) in _USAGE.items():
    name = command.__name__.rstrip("_")
    app.command(
        command,
        name=name,
        usage=f"Usage: shardmill {name} {usage}",
        help_formatter=GroupedHelp(command),
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
        tell(explain(error))
        return EXIT_USAGE
    if isinstance(error, ShardmillError):
        tell(str(error))
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    if isinstance(error, OSError):
        tell(f"{one_line(error)}.")
        return EXIT_FAILED
    return None
