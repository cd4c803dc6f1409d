"""The command line `shardmill`: what its commands are, and how each ends."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cyclopts import App, CycloptsError, Parameter
from pydantic import ByteSize

from flows.commands.demo import demo
from flows.commands.export import export
from flows.commands.import_ import import_
from flows.commands.inspect import inspect
from flows.commands.plan import plan
from flows.commands.shard import shard
from flows.commands.submit import submit
from flows.commands.trace import trace
from flows.commands.verify import verify
from flows.commands.whole_datasets import copy, extend, merge, subset
from flows.console.config_file import ConfigFile
from flows.console.consoles import err, out, tell, write_anything
from flows.console.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from flows.console.explain import explain
from flows.console.places import require_names
from flows.stops import Stopped, leave, stop_by_signals, stop_within, taken
from streaming_ext.errors import ShardmillError, UsageError
from streaming_ext.storage.secrets import require_no_secret
from streaming_ext.units import size_text


def _version() -> str:
    from importlib.metadata import version

    return version("shardmill")


def _default_text(value: object) -> str:
    """A default as it is shown in help texts."""
    if isinstance(value, ByteSize):
        return size_text(value)
    return "" if value is None or value is False else str(value)


config_file = ConfigFile()
app = App(
    name="shardmill",
    help="Raw text datasets to tokenized MDS shards.",
    version=_version,
    console=out,
    config=(require_names, config_file),
    default_parameter=Parameter(negative=(), show_default=_default_text),
    help_on_error=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",  # else it exits by itself, and waits for Prefect's threads
)
app.command(
    shard, usage="Usage: shardmill shard SOURCE... --output PATH --tokenizer NAME [OPTIONS]"
)
app.command(extend, usage="Usage: shardmill extend DATASET SOURCE... [OPTIONS]")
app.command(plan, usage="Usage: shardmill plan SOURCE... --tokenizer NAME [OPTIONS]")
app.command(export, usage="Usage: shardmill export FORMAT DATASET --output PATH [OPTIONS]")
app.command(copy, usage="Usage: shardmill copy FROM TO [OPTIONS]")
app.command(merge, usage="Usage: shardmill merge DATASET DATASET... --output PATH [OPTIONS]")
app.command(
    import_,
    name="import",
    usage="Usage: shardmill import FORMAT PATH... --output DATASET --tokenizer NAME [OPTIONS]",
)
app.command(subset, usage="Usage: shardmill subset DATASET --output PATH --documents N [OPTIONS]")
app.command(submit)
app.command(verify)
app.command(inspect)
app.command(trace)
app.command(demo)
app.register_install_completion_command()
config_file.commands = frozenset(name for name in app if not name.startswith("-"))


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; with arguments, as a part of another program."""
    given = sys.argv[1:] if arguments is None else arguments
    write_anything()

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
        tell(explain(error, config_file.origins))
        return EXIT_USAGE
    if isinstance(error, ShardmillError):
        tell(str(error))
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    return None
