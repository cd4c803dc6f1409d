"""Errors that name the extra of this distribution which brings a missing package."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires
from importlib.util import find_spec

from streaming_ext.base.errors import MissingExtraError

# Matches `mosaicml-streaming<0.14,>=0.13; extra == "train"` for the name and the extra.
_OF_EXTRA = re.compile(r"""([\w.-]+).*\bextra == ["'](\w+)""")


@contextmanager
def extras_named() -> Iterator[None]:
    """Replace the error of a failed import within the block by one that names the extra.

    Raises:
        MissingExtraError: a package is not installed, and an extra brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "?").partition(".")[0]
        if (extra := _extra_of(package)) is None:
            raise
        raise MissingExtraError(
            f"The package {package} is not installed. The extra `{extra}` brings it: "
            f"pip install 'shardmill[{extra}]'."
        ) from None


def require(package: str) -> None:
    """Check that a package of an extra is installed, without importing it.

    Raises:
        MissingExtraError: the package is not installed.
    """
    with extras_named():
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)


def _extra_of(package: str) -> str | None:
    """Return the first extra with a distribution whose name contains the package's name.

    The name `pyyaml` contains `yaml`.
    """
    for line in requires("shardmill") or ():
        found = _OF_EXTRA.match(line)
        if found and package.lower() in found[1].lower().replace("-", "_"):
            return found[2]
    return None
