"""`--config FILE`: options from a YAML file."""

import os
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from cyclopts import App
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict

from streaming_ext.errors import UsageError
from streaming_ext.storage.local_paths import local_path

_MERGE = "tag:yaml.org,2002:merge"
Lines = dict[str, tuple[Any, int]]  # value and line of each option


class _Loader(yaml.SafeLoader):
    """Values as YAML 1.2 reads them: in 1.1 `010` is 8, `20:48` is 1248 and `yes` is true."""

    def whole_number(self, node: yaml.ScalarNode) -> int:
        """`10`, `010` (ten), `0o17`, `0x1f`; `1_000` for people."""
        text = str(self.construct_scalar(node)).lower()
        return int(text, 0 if re.match(r"[-+]?0[ox]", text) else 10)


_Loader.yaml_implicit_resolvers = {}  # none of YAML 1.1
for _tag, _written, _first in (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", "[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", "-+0123456789."),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("merge", "<<", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_written})$"), list(_first)
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.whole_number)


class ConfigFile:
    """Fills what the command line does not say from the YAML file that it names.

    Attributes:
        origins: file and line of each option that came from there, by the name of its field.
        commands: names of all commands, whose sections may stand in the file.
    """

    def __init__(self) -> None:
        self.origins: dict[str, str] = {}
        self.commands: frozenset[str] = frozenset()

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """As cyclopts calls it, between reading the command line and checking its values."""
        self.origins.clear()
        named = [argument for argument in arguments if argument.name == "--config"]
        if not named or not named[0].tokens:
            return
        file = Path(named[0].tokens[-1].value)
        known = {name.removeprefix("--") for argument in arguments for name in argument.names}
        options = read_config(file, command=commands[-1] if commands else "", others=self.commands)
        given = {name for argument in arguments if argument.tokens for name in argument.names}
        for name, (_, line) in options.items():
            where = f"--config {file}, line {line}"
            option = name.replace("_", "-")
            if option not in known or option == "config":
                raise UsageError(f"{where}: there is no option {name!r}.{_hint(option, known)}")
            if f"--{option}" not in given:
                self.origins[option.replace("-", "_")] = where
        # One without a value has its default.
        values = {name: value for name, (value, _) in options.items() if value is not None}
        Dict(values, source=f"--config {file}", use_commands_as_keys=False)(
            app, commands, arguments
        )


def read_config(file: Path, *, command: str, others: Iterable[str]) -> Lines:
    """Options of a YAML file, each with its line.

    They stand at the top, or below the name of the command; what stands there goes first.

    Args:
        file: to read.
        command: whose options are wanted.
        others: names of all commands; what stands below another one's is left out.

    Raises:
        UsageError: the file cannot be read, or is something else.
    """
    try:
        text = local_path(file).read_text("utf-8")
        root = yaml.compose(text, Loader=_Loader)
    except RecursionError as error:
        raise _too_deep(file) from error
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise UsageError(f"--config {file}: cannot be read: {reason}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--config {file}: expected a YAML file; byte {error.start} is no UTF-8 text."
        ) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"--config {file}, line {line}: no YAML: {error.problem}.") from error
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"--config {file}: expected a YAML file: {reason}.") from error
    if root is None:
        return {}
    options: Lines = {}
    section: Lines = {}
    for name, node, line in _entries(file, root):
        if name == command and isinstance(node, yaml.MappingNode):
            section = {key: (_value(file, value), at) for key, value, at in _entries(file, node)}
        elif not (name in others and isinstance(node, yaml.MappingNode)):
            options[name] = (_value(file, node), line)
    return options | section


def _entries(file: Path, node: yaml.Node) -> Iterator[tuple[str, yaml.Node, int]]:
    """Names, nodes and lines of a mapping."""
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(
            f"--config {file}, line {node.start_mark.line + 1}: expected options, a line each, "
            "such as `tokenizer: gpt2`."
        )
    seen: dict[str, int] = {}
    own = [pair for pair in node.value if pair[0].tag != _MERGE]
    given = {str(key.value) for key, _ in own}
    for key, value in _merged(file, node):
        if str(key.value) not in given:
            yield str(key.value), value, key.start_mark.line + 1
    for key, value in own:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"--config {file}, line {line}: expected the name of an option.")
        name = str(key.value)
        if name in seen:
            raise UsageError(
                f"--config {file}, line {line}: {name!r} stands in line {seen[name]} already."
            )
        seen[name] = line
        yield name, value, line


def _merged(file: Path, node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    """What `<<` brings into a mapping."""
    brought = [pair for pair in node.value if pair[0].tag == _MERGE]
    merging = yaml.MappingNode(node.tag, brought, node.start_mark, node.end_mark)
    loader = _Loader("")
    try:
        loader.flatten_mapping(merging)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(
            f"--config {file}, line {line}: expected options, or a list of them, behind `<<`."
        ) from error
    finally:
        loader.dispose()
    return list({str(key.value): (key, value) for key, value in merging.value}.values())


def _value(file: Path, node: yaml.Node) -> Any:
    loader = _Loader("")
    try:
        return loader.construct_object(node, deep=True)
    except RecursionError as error:
        raise _too_deep(file) from error
    except (yaml.YAMLError, ValueError) as error:  # a tag that is not plain YAML, such as !!python
        line = node.start_mark.line + 1
        raise UsageError(f"--config {file}, line {line}: not a plain value.") from error
    finally:
        loader.dispose()


def _too_deep(file: Path) -> UsageError:
    return UsageError(f"--config {file}: its lists or mappings are nested too deep.")


def _hint(option: str, known: set[str]) -> str:
    near = get_close_matches(option, known, n=1)
    return f" Is {near[0].replace('-', '_')!r} meant?" if near else ""
