"""Prefect imported: it reads settings of environment and files on the way, and any may be wrong."""

import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import pydantic
from pydantic_settings import SettingsError

from flows.console.consoles import err
from flows.prefect_api.server_url import require_url
from flows.prefect_api.settings_files import broken_file, files_with_settings, find_setting
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
        raise UsageError(broken_file() or "\n".join(_told(error))) from error
    except (SettingsError, ValueError, TypeError) as error:  # of TOML, of JSON, of UTF-8
        raise UsageError(broken_file() or _somewhere(one_line(error))) from error
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
        setting = find_setting(error.title, str(fault["loc"][-1])) if fault["loc"] else None
        if setting is None:
            yield _somewhere(str(fault["msg"]))
        elif (place := setting.place()) is None:
            yield _somewhere(in_words(fault, name=setting.variables[0]))
        else:
            name, file = place
            where = "the environment" if file is None else file.absolute()
            yield f"{in_words(fault, name=name)}. It is set in {where}."


def _somewhere(words: str) -> str:
    """A fault of a setting that is not known."""
    files = "".join(f", {file.absolute()}" for file in files_with_settings())
    return (
        f"Prefect's settings cannot be read: {words}. They stand in environment variables "
        f"PREFECT_...{files}."
    )
