"""Files in which Prefect looks for settings: which of them holds one, and which cannot be read."""

import io
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dotenv

from streaming_ext.errors import one_line


@dataclass(frozen=True)
class Setting:
    """A setting of Prefect, by all the names that it has.

    Attributes:
        variables: of the environment, of `.env` and of a profile.
        table: of a TOML file, from the top.
        key: in that table.
    """

    variables: tuple[str, ...]
    table: tuple[str, ...]
    key: str

    def place(self) -> tuple[str, Path | None] | None:
        """The name under which it is set where Prefect looks first, and the file; no file where
        that is the environment, None where it is set nowhere."""
        for variable in self.variables:
            if variable in os.environ:
                return variable, None
        for file in settings_files():
            if (name := self._name_in(file)) is not None:
                return name, file
        return None

    def _name_in(self, file: Path) -> str | None:
        top, stated = _stated(file)
        for variable in self.variables:
            if variable in stated:
                return variable
        for name in self.table:
            stated = _table(stated, name)
        return ".".join((*top, *self.table, self.key)) if self.key in stated else None


def find_setting(kind: str, field: str) -> Setting | None:
    """The setting that a fault is of; None where it is of something else.

    Args:
        kind: name of Prefect's class of settings.
        field: of this class, or another name of it.
    """
    from prefect.settings.base import PrefectBaseSettings

    kinds: list[Any] = [PrefectBaseSettings]
    for each in kinds:
        kinds += each.__subclasses__()
        if each.__name__ != kind:
            continue
        for key, about in each.model_fields.items():
            named = getattr(about.validation_alias, "choices", [about.validation_alias])
            others = [name for name in named if isinstance(name, str)]
            if field in {key, *others}:
                own = f"{each.model_config.get('env_prefix', 'PREFECT_')}{key}"
                variables = tuple(dict.fromkeys(name.upper() for name in (own, *others)))
                header = each.model_config.get("prefect_toml_table_header", ())
                return Setting(variables, tuple(header), key)
    return None


def settings_files() -> list[Path]:
    """Those that are there, in the order in which Prefect looks into them."""
    places = [Path(".env"), Path("prefect.toml"), Path("pyproject.toml"), _profiles()]
    return [place for place in places if place.is_file()]


def files_with_settings() -> list[Path]:
    """Those of them in which any setting of Prefect's stands."""
    return [file for file in settings_files() if _stated(file)[1]]


def broken_file() -> str | None:
    """Which of these files cannot be read, and why."""
    for file in settings_files():
        try:
            _parsed(file)
        except (OSError, ValueError) as error:
            kind = "TOML" if file.suffix == ".toml" else "text"
            reason = "it is not UTF-8" if isinstance(error, UnicodeError) else one_line(error)
            return (
                f"{file.absolute()}: Prefect looks for its settings there, and it is no {kind}: "
                f"{reason}. Mend it" + (", or start elsewhere." if not file.is_absolute() else ".")
            )
    return None


def _profiles() -> Path:
    """Where profiles are: the environment alone says it, as settings are still to be read."""
    home = os.environ.get("PREFECT_HOME") or "~/.prefect"
    own = os.environ.get("PREFECT_PROFILES_PATH")
    return Path(own or f"{home}/profiles.toml").expanduser()


def _parsed(file: Path) -> dict[str, Any]:
    text = file.read_bytes().decode()
    if file.suffix == ".toml":
        return tomllib.loads(text)
    return dict(dotenv.dotenv_values(stream=io.StringIO(text)))


def _stated(file: Path) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Tables above what a file states for Prefect, and that."""
    top: tuple[str, ...] = ()
    found = _parsed(file)
    if file == _profiles():
        top = ("profiles", str(os.environ.get("PREFECT_PROFILE") or found.get("active")))
    elif file.suffix == ".toml" and file.name != "prefect.toml":
        top = ("tool", "prefect")
    elif file.suffix != ".toml":
        found = dict(_variables(found))
    for name in top:
        found = _table(found, name)
    return top, found


def _variables(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if name.upper().startswith("PREFECT_"):
            yield name.upper(), value


def _table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    found = tables.get(name)
    return found if isinstance(found, dict) else {}
