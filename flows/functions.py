"""The commands as Python functions: the same settings, objects as results, errors as exceptions.

`import shardmill` offers them; `functions.pyi` is generated from their signatures, for editors.
"""

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import pydantic
from pydantic import ByteSize
from pydantic.fields import FieldInfo

from flows.commands import outputs
from flows.commands.options import ConfigOptions
from flows.results import Dataset, Export
from flows.terminal.printing import err
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.base.plain_faults import plain_faults
from streaming_ext.base.units import size_text
from streaming_ext.store import open_storage
from streaming_ext.text.options import Options
from tasks.core.check.tokenizer import CheckTokenizerConfig, TokenizerCheck, compare_tokenizers
from tasks.core.config import ExtendConfig, ImportConfig, ShardConfig
from tasks.core.derive.config import (
    AnnotateConfig,
    CopyConfig,
    ExportConfig,
    MergeConfig,
    SubsetConfig,
)
from tasks.core.derive.export_format import (
    is_export,
)
from tasks.core.estimate.config import BenchConfig, EstimateConfig

if TYPE_CHECKING:
    from tasks.core.estimate.estimate import Bench, Estimate

_OPTION = re.compile(r"--([a-z][a-z-]+)")  # in messages
Config = TypeVar("Config", bound=Options)
Result = TypeVar("Result")


def _signature(config: type[Options], result: str) -> inspect.Signature:
    """Return the settings of a configuration as parameters: positional ones, then required ones."""
    fields = config.model_fields
    settings = {name: fields[name] for name in config.arguments}
    settings |= {name: field for name, field in fields.items() if field.is_required()} | fields
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD
            if name in config.arguments
            else inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=_type_of(field.annotation) + (" | None" if field.default_factory else ""),
        )
        for name, field in settings.items()
    ]
    quiet = inspect.Parameter(
        "quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation="bool"
    )
    return inspect.Signature([*parameters, quiet], return_annotation=result)


def _default(field: FieldInfo) -> Any:
    """Return a default in the form that people write, such as 64MiB for a size."""
    if field.is_required():
        return inspect.Parameter.empty
    if isinstance(field.default, ByteSize):
        return size_text(field.default)
    return None if field.default_factory else field.default


def _type_of(annotation: Any) -> str:
    """Return the type of a setting as Python code; sizes and rates may be text."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return str(annotation).removeprefix("typing.")
    if origin is tuple:
        return "str | Sequence[str]"
    if origin is Annotated:  # a rate
        return f"{_type_of(members[0])} | str"
    if members:  # a union
        return " | ".join(map(_type_of, members))
    names: dict[Any, str] = {ByteSize: "int | str", type(None): "None"}
    return names.get(annotation) or str(annotation.__name__)


def _descriptions(config: type[Options]) -> str:
    """Return the descriptions of settings in the form of a docstring's arguments."""
    lines = {name: field.description for name, field in config.model_fields.items()}
    lines["quiet"] = "Print only errors."
    return "\n".join(f"    {name}: {words}" for name, words in lines.items())


def _with_settings(command: Callable[[Config, ConfigOptions], Result]) -> Callable[..., Result]:
    """Give a function the settings of its configuration as its arguments."""
    config: type[Config] = command.__annotations__["config"]
    signature = _signature(config, command.__annotations__["return"])

    @wraps(command)
    def function(*values: Any, **settings: Any) -> Result:
        given = signature.bind(*values, **settings).arguments
        given = {name: value for name, value in given.items() if value is not None}
        printing = ConfigOptions(quiet=given.pop("quiet", False))
        try:
            checked = config.model_validate(given)
        except pydantic.ValidationError as error:
            raise UsageError(_OPTION.sub(_as_argument, plain_faults(error))) from None
        return command(checked, printing)

    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = f"{command.__doc__}\n\nArgs:\n{_descriptions(config)}"
    return function


def _as_argument(option: re.Match[str]) -> str:
    return option[1].replace("-", "_")


@_with_settings
def shard(config: ShardConfig, printing: ConfigOptions) -> Dataset:
    """Tokenize text files into MDS shards with a holdout split; call it again to resume."""
    outputs.shard(config, printing=printing)
    return Dataset(config.output)


@_with_settings
def extend(config: ExtendConfig, printing: ConfigOptions) -> Dataset:
    """Add source files to a published dataset; call it again to resume."""
    outputs.extend(config, printing=printing)
    return Dataset(config.dataset)


@_with_settings
def import_(config: ImportConfig, printing: ConfigOptions) -> Dataset:
    """Make a dataset of the token files of another trainer; call it again to resume."""
    outputs.import_(config, printing=printing)
    return Dataset(config.output)


@_with_settings
def export(config: ExportConfig, printing: ConfigOptions) -> Export:
    """Write a dataset in the format of another trainer; call it again to resume."""
    outputs.export(config, printing=printing)
    return Export(config.output)


@_with_settings
def copy(config: CopyConfig, printing: ConfigOptions) -> Dataset | Export:
    """Copy a dataset or an export to any storage; every byte is compared with its hash."""
    outputs.copy(config, printing=printing)
    return (Export if is_export(open_storage(config.output)) else Dataset)(config.output)


@_with_settings
def merge(config: MergeConfig, printing: ConfigOptions) -> Dataset:
    """Make one dataset of several, without tokenizing again."""
    outputs.merge(config, printing=printing)
    return Dataset(config.output)


@_with_settings
def subset(config: SubsetConfig, printing: ConfigOptions) -> Dataset:
    """Make a dataset of some documents of another."""
    outputs.subset(config, printing=printing)
    return Dataset(config.output)


@_with_settings
def annotate(config: AnnotateConfig, printing: ConfigOptions) -> Dataset:
    """Add columns to the documents of a dataset; call it again to resume."""
    outputs.annotate(config, printing=printing)
    return Dataset(config.dataset)


@_with_settings
def bench(config: BenchConfig, printing: ConfigOptions) -> "Bench":
    """Measure how this machine tokenizes some files: engine, ids and rate."""
    from tasks.core.estimate.estimate import bench

    with printing.applied(), err.status("starting") as status:
        return bench(config, status.update)


@_with_settings
def check_tokenizer(config: CheckTokenizerConfig, printing: ConfigOptions) -> TokenizerCheck:
    """Compare a tokenizer with that of a dataset; a difference raises ConfigMismatchError."""
    with printing.applied(), err.status("comparing"):
        found = compare_tokenizers(config)
    if not found.same:
        raise ConfigMismatchError(found.difference)
    return found


@_with_settings
def plan(config: EstimateConfig, printing: ConfigOptions) -> "Estimate":
    """Estimate tokens, disk and time of a run before it runs; no dataset is made."""
    from tasks.core.estimate.estimate import estimate

    with printing.applied(), err.status("starting") as status:
        return estimate(config, status.update)
