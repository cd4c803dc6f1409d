"""Prefect imported: it reads settings of environment and files on the way, and any may be wrong."""

import io
import os
import sys
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import pydantic
from pydantic_settings import SettingsError

from flows.console.consoles import err
from flows.prefect_api.server_url import require_url
from streaming_ext.errors import UsageError, one_line
from streaming_ext.plain_faults import in_words

_URL = "PREFECT_API_URL"


def load_prefect() -> None:
    """Import Prefect with the settings that it finds.

    Raises:
        UsageError: a setting is wrong, a file of settings is none, or there is no home folder.
    """
    if "prefect.context" in sys.modules:
        return
    if not (url := os.environ.get(_URL, "none").strip()):
        del os.environ[_URL]  # as in a script that leaves its variable empty
    elif url != "none":
        require_url(url)
    _require_home()
    with settings_explained():
        import prefect.context  # noqa: F401


@contextmanager
def settings_explained() -> Iterator[None]:
    """Tell what is wrong with settings that Prefect reads in the block.

    Raises:
        UsageError: naming the variable or the file.
    """
    said = io.StringIO()
    try:
        # It tells of a fault by itself too, once on import and once by a warning.
        with warnings.catch_warnings(), redirect_stderr(said):
            warnings.simplefilter("ignore", UserWarning)
            yield
    except pydantic.ValidationError as error:
        raise UsageError("\n".join(_told(error))) from error
    except (SettingsError, ValueError, TypeError) as error:  # of TOML, of JSON, of UTF-8
        raise UsageError(_broken_file() or _somewhere(one_line(error))) from error
    err.out(said.getvalue(), end="", highlight=False)


def _require_home() -> None:
    """Have a home folder, which Prefect asks for also where it has a folder of its own."""
    try:
        Path.home()
    except RuntimeError as error:
        if not (own := os.environ.get("PREFECT_HOME")):
            raise UsageError(
                f"The user {os.getuid()} has no home folder: HOME is not set, and this machine "
                "knows no such user. Set HOME or PREFECT_HOME to a folder that may be written to."
            ) from error
        os.environ["HOME"] = own


def _told(error: pydantic.ValidationError) -> Iterator[str]:
    """A line for each setting that is wrong."""
    for fault in error.errors(include_url=False):
        if fault["type"] == "default_factory_not_called":  # for want of another one
            continue
        field = str(fault["loc"][-1]) if fault["loc"] else ""
        name = _variable(error.title, field) if field else ""
        words = in_words(fault, name=name) if field else str(fault["msg"])
        if name in os.environ:
            yield f"{words}. The variable is set in the environment."
        else:
            yield _somewhere(words)


def _variable(settings: str, field: str) -> str:
    """The environment variable of a field, such as PREFECT_LOGGING_LEVEL."""
    if field.upper().startswith("PREFECT_"):
        return field.upper()
    from prefect.settings.base import PrefectBaseSettings

    kinds: list[Any] = [PrefectBaseSettings]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__name__ == settings:
            return f"{kind.model_config.get('env_prefix', 'PREFECT_')}{field}".upper()
    return field


def _files() -> list[Path]:
    """Files of settings that Prefect reads, those that are there."""
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    places = [Path(".env"), Path("prefect.toml"), Path("pyproject.toml"), profiles.expanduser()]
    return [place for place in places if place.is_file()]


def _broken_file() -> str | None:
    """Which of these files cannot be read, and why."""
    for file in _files():
        try:
            text = file.read_bytes().decode()
            if file.suffix == ".toml":
                tomllib.loads(text)
        except (OSError, ValueError) as error:
            kind = "TOML" if file.suffix == ".toml" else "text"
            reason = "it is not UTF-8" if isinstance(error, UnicodeError) else one_line(error)
            return (
                f"{file.absolute()}: Prefect looks for its settings there, and it is no {kind}: "
                f"{reason}. Mend it" + (", or start elsewhere." if not file.is_absolute() else ".")
            )
    return None


def _somewhere(words: str) -> str:
    """A fault whose place is not known."""
    files = "".join(f", {file.absolute()}" for file in _files())
    return (
        f"Prefect's settings cannot be read: {words}. They stand in environment variables "
        f"PREFECT_...{files}."
    )
