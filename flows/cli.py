"""The command line `shardmill`.

Exit codes: 0 all is well; 1 files failed, or a dataset is not sound; 2 wrong usage; 130 stopped by
Ctrl+C; 143 stopped by SIGTERM, or cancelled in Prefect.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import pydantic
import yaml
from cyclopts import App, CycloptsError, Parameter, validators
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Yaml
from rich.console import Console
from rich.progress import Progress

from flows.terminal.visible import visible
from streaming_ext.dataset.layout import Split
from streaming_ext.errors import ShardmillError, UsageError
from tasks.core.config import ShardConfig
from tasks.core.estimate.config import EstimateConfig
from tasks.core.outputs.publish import read_manifest
from tasks.core.storage import open_storage

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM

_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)


def _read_config_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill what the command line does not say from the YAML file that it names."""
    for argument in arguments:
        if argument.name == "--config" and argument.tokens:
            file = Path(argument.tokens[-1].value)
            try:
                Yaml(file, must_exist=True, use_commands_as_keys=False)(app, commands, arguments)
            except (OSError, yaml.YAMLError) as error:
                raise UsageError(f"--config {file}: cannot be read: {error}") from error


app = App(
    name="shardmill",
    help="Raw text datasets to tokenized MDS shards.",
    config=_read_config_file,
    default_parameter=Parameter(negative=()),
    help_on_error=False,
    suppress_keyboard_interrupt=False,
)


@app.command(usage="Usage: shardmill shard SOURCE... --output PATH --tokenizer NAME [OPTIONS]")
def shard(
    config: Annotated[ShardConfig, Parameter(name="*")],
    *,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
) -> int:
    """Tokenize Parquet files, on disk, behind URLs or of the Hub, into MDS shards with a holdout.

    Run the same command again after any stop: it goes on where it was, to the same bytes.

    Parameters
    ----------
    config_file
        YAML file with any of these options; what the command line says goes first.
    """
    return run_shard(config)


def run_shard(config: ShardConfig) -> int:
    """Run the flow in this process, with its progress in the terminal; returns the exit code."""
    from tasks.core.planning.plan import check_sources

    check_sources(config)  # a slip of the pen is told at once, before Prefect is even loaded
    _quiet_prefect()
    from flows.prefect_api.embedded_api import prefect_api
    from flows.shard_dataset import shard_dataset
    from flows.terminal.run_progress import show_published, show_report, shown
    from tasks.core.reporting.progress import watch

    with watch() as progress:
        with shown(progress, _err), prefect_api():
            state = shard_dataset(config, return_state=True)
        if state.is_cancelled() or state.is_cancelling():
            _err.print("shardmill: cancelled in Prefect. Run the same command again to go on.")
            return EXIT_TERMINATED
        if progress.report is not None:
            show_report(progress.report, _out, page=progress.page)
            if progress.report.failed:
                _err.print(
                    f"{len(progress.report.failed)} of {progress.report.files} files failed; the "
                    "others are kept. Run the same command again to do only what is missing.",
                    soft_wrap=True,
                )
                return EXIT_FAILED
    state.result()
    storage = open_storage(config.output)
    show_published(read_manifest(storage), str(storage), _out)
    return 0


@app.command(usage="Usage: shardmill plan SOURCE... --tokenizer NAME [OPTIONS]")
def plan(
    config: Annotated[EstimateConfig, Parameter(name="*")],
    *,
    json: bool = False,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
) -> int:
    """Tell what a run would make and take: tokens, disk, time, and what decides the time.

    Nothing is made: some rows of some files are read, tokenized and written to the temporary
    folder, on all workers at once, and the rest is reckoned.

    Parameters
    ----------
    json
        Print everything as JSON.
    config_file
        YAML file with any of these options; what the command line says goes first.
    """
    from flows.terminal.show_estimate import show_estimate
    from streaming_ext.text.memory import limit_memory
    from tasks.core.estimate.estimate import estimate

    limit_memory()  # files of unknown origin are read in this process
    with _err.status("starting") as status:
        found = estimate(config, status.update)
    if json:
        print(found.model_dump_json(indent=1))
    else:
        show_estimate(found, _out)
    return 0


@app.command
def submit(deployment: str, *settings: str) -> int:
    """Run a deployment on a cluster's workers and follow it; Ctrl+C stops all of it, everywhere.

    Parameters
    ----------
    deployment
        Name of a deployment of the flow shard-dataset, such as shard-fineweb.
    settings
        Options that are to differ from the deployment's, as NAME=VALUE: output=s3://bucket/text.
    """
    _quiet_prefect()
    from flows.submit import submit as run

    return 0 if run(deployment, settings, _out) else EXIT_FAILED


@app.command
def verify(
    path: str,
    *,
    deep: bool = False,
    documents: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 200,
    seed: int = 0,
    workers: Annotated[int, Parameter(validator=validators.Number(gte=1))] = os.cpu_count() or 1,
) -> int:
    """Check every byte of a dataset against what it says of itself.

    Parameters
    ----------
    path
        Folder or URL of a dataset.
    deep
        Also read the source files again: tokenize a sample of documents anew and compare.
    documents
        Documents in that sample.
    seed
        Decides which documents those are.
    workers
        Threads.
    """
    from flows.terminal.show_verify import show_report
    from tasks.core.verify.verify import verify as check

    with Progress(transient=True, console=_err) as bar:
        task = bar.add_task("verifying", total=None)
        report = check(
            open_storage(path),
            deep=deep,
            deep_sample=documents,
            seed=seed,
            workers=workers,
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    show_report(report, _out)
    return 0 if report.sound else EXIT_FAILED


@app.command
def inspect(
    path: str,
    *,
    sample: Annotated[tuple[int, ...], Parameter(name=("--sample", "-s"))] = (),
    split: Split = "train",
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

    storage = open_storage(path)
    if sample:
        show_samples(decode_samples(storage, split, list(sample)), _out)
    else:
        show_dataset(describe(storage), _out)
    return 0


@app.command
def trace(
    path: str,
    *,
    step: int,
    batch_size: int,
    ranks: int = 1,
    epoch: int = 0,
    split: Split = "train",
    sequence_length: int | None = None,
    shuffle: Annotated[bool, Parameter(negative="--no-shuffle")] = True,
    shuffle_seed: int = 9176,
    shuffle_block_size: int = 2**18,
    num_canonical_nodes: int | None = None,
) -> int:
    """Tell which documents, of which source file and row, a training step held.

    The options that decide the order are those of `StreamingTokenDataset`; give the values that
    training ran with.

    Parameters
    ----------
    path
        Folder or URL of a dataset.
    step
        Step within the epoch, from 0.
    batch_size
        Sequences a rank and step.
    ranks
        Data-parallel ranks.
    epoch
        Number of the epoch, from 0.
    split
        The split that was read.
    sequence_length
        Tokens a sequence; the dataset's own unless given.
    shuffle
        Whether the order was shuffled.
    shuffle_seed
        Seed of the order.
    shuffle_block_size
        Sequences that were shuffled among each other.
    num_canonical_nodes
        Lanes through the data.
    """
    try:
        from streaming_ext.token_dataset import StreamingTokenDataset
    except ImportError as error:
        raise UsageError(f"`shardmill trace` needs the extra `train`: {error}.") from error
    from flows.terminal.show_trace import show_trace
    from streaming_ext.trace import trace_step

    with tempfile.TemporaryDirectory() as cache:  # nothing is unpacked for this
        dataset = StreamingTokenDataset(
            remote=path if "://" in path else None,
            local=cache if "://" in path else path,
            split=split,
            sequence_length=sequence_length,
            batch_size=batch_size,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            shuffle_block_size=shuffle_block_size,
            num_canonical_nodes=num_canonical_nodes,
            dp_rank=0,
            dp_world_size=ranks,
        )
        show_trace(trace_step(dataset, step, epoch=epoch), _out)
    return 0


@app.command
def demo(output: Path = Path("demo-output")) -> int:
    """Run the main job on text and a vocabulary that are made here, and read a batch back.

    Parameters
    ----------
    output
        Folder for all of it.
    """
    from flows.demo import make_demo, read_back

    config = make_demo(output, _out)
    return run_shard(config) or read_back(config, _out)


def _quiet_prefect() -> None:
    """Leave the terminal to the progress bar; Prefect's own log still goes to its dashboard."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")


def _explain(error: CycloptsError) -> str:
    """One line a wrong option, without the dress of the libraries."""
    cause = error.__cause__
    if not isinstance(cause, pydantic.ValidationError):
        return str(error)
    return "\n".join(
        f"--{'.'.join(str(part) for part in detail['loc'][:1]).replace('_', '-')}: "
        f"{detail['msg'].removeprefix('Value error, ')}, got {detail['input']!r}"
        for detail in cause.errors()
    )


def _tell(problem: str) -> None:
    """Print an error; it may hold names from files of unknown origin."""
    _err.print(visible(f"shardmill: {problem}", keep="\n"), markup=False, soft_wrap=True)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    sys.exit(_guarded(lambda: app(arguments, exit_on_error=False, print_error=False)))


class _Terminated(BaseException):
    """SIGTERM arrived; raised so that everything is cleaned up on the way out."""


def _terminate(*_: object) -> NoReturn:
    raise _Terminated


def _guarded(command: Callable[[], Any]) -> int:
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return int(command() or 0)
    except CycloptsError as error:
        _tell(_explain(error))
        return EXIT_USAGE
    except ShardmillError as error:
        _tell(str(error))
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    except (KeyboardInterrupt, _Terminated) as stop:
        _err.print("shardmill: stopped. Run the same command again to go on.")
        return EXIT_TERMINATED if isinstance(stop, _Terminated) else EXIT_INTERRUPTED


if __name__ == "__main__":
    main()
