"""Paths and URLs as users write them; impossible names and URLs with secrets are refused."""

import re
from collections.abc import Mapping
from pathlib import Path

from streaming_ext.base.errors import UsageError

LOCK_FOLDER = "runs"  # in a dataset; also holds everything that may differ between two runs


def local_path(text: str | Path) -> Path:
    """Return a path with `~` and `~user` expanded.

    Raises:
        UsageError: there is no such user, or the user has no home folder.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        home = str(text).partition("/")[0]
        raise UsageError(
            f"{text}: {home} is the home folder of nobody here. Write the path in full, or "
            f"./{home} where that is a name."
        ) from error


def absolute(location: str | Path) -> str:
    """Return a location that does not depend on the working folder: an absolute path, or a URL.

    Raises:
        UsageError: `~` is no user's home.
    """
    text = str(location)
    return text if "://" in text else str(local_path(text).absolute())


def require_possible_name(text: str) -> None:
    """Refuse a name that no file can have, or that no record of a run could hold.

    Raises:
        UsageError: the name is not UTF-8, or holds a zero byte.
    """
    if "\0" in text:
        raise UsageError(f"{text!r} holds a zero byte, which no path can.")
    if not is_utf8(text):
        raise UsageError(f"{shown_path(text)} is not UTF-8: records of a run could not hold it.")


def require_writable_name(text: str) -> None:
    """Refuse a path if its name or its folder's is impossible; see `require_possible_name`.

    Args:
        text: a path, or a URL.

    Raises:
        UsageError: the name is impossible, or there is no such user.
    """
    require_possible_name(text)
    if "://" not in text and not is_utf8(str(local_path(text).absolute())):
        raise UsageError(
            f"{text} lies in a folder whose name is not UTF-8, which records of a run could not "
            f"hold: {shown_path(str(Path.cwd()))}. Start elsewhere."
        )


def is_utf8(path: str) -> bool:
    """Return whether a path from the system is UTF-8; other bytes are surrogates in it."""
    return not any("\ud800" <= character <= "\udfff" for character in path)


def shown_path(path: str) -> str:
    """Return a path with each byte that is not UTF-8 shown as `\\\\xff`."""
    return repr(path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


_URL = re.compile(
    r"(?P<scheme>[A-Za-z0-9][A-Za-z0-9+.}-]*):}?/+(?P<authority>[^/]*)(?P<rest>.*)", re.DOTALL
)
_PATHS = {"file", "local"}  # schemes without a host
_PORT = re.compile(r"[^:]*|[^:]*:\d+|\[[0-9a-fA-F:.]*\](:\d+)?")
# In a pattern of sources '?' is a wildcard; only a query has an '=' after it.
_QUERY = re.compile(r"\?[^/]*=|#[^/]*=")


def _secret_in(text: str) -> tuple[str, str] | None:
    """Return the scheme of a URL and the kind of secret in it; None if there is no secret."""
    # The braces of a pattern may hold whole URLs: {s3://one/x,s3://other/y}.
    alternatives = re.split("[{,]", text) if "{" in text else []
    for part in (text, *alternatives):
        match = _URL.match(part.strip())
        if match is None or (scheme := match["scheme"].lower().strip("}")) in _PATHS:
            continue
        authority = match["authority"]
        if "@" in authority or not _PORT.fullmatch(authority.rstrip("}")):
            return scheme, "credentials"
        if _QUERY.search(authority + match["rest"]):
            return scheme, "a query"
    return None


def holds_secret(text: str) -> bool:
    """Return whether a text is a URL with credentials or a query in it."""
    return _secret_in(text) is not None


def require_no_secret(text: str, option: str) -> None:
    """Refuse a URL with credentials or a query in it.

    Args:
        text: a URL, or anything else that an option takes.
        option: the name of the option, for the message.

    Raises:
        UsageError: the URL holds a secret; the message repeats only the scheme.
    """
    if found := _secret_in(text):
        scheme, problem = found
        raise UsageError(
            f"{option}: this {scheme}:// URL must not hold {problem}. URLs stand in records, logs "
            "and Prefect's database. Give credentials through the environment "
            "(docs/reference/configuration.md); the URL is not repeated here."
        )


def require_no_secrets(given: object, option: str) -> None:
    """Refuse such a URL anywhere in a value: a text, or lists and mappings of texts.

    Raises:
        UsageError: see `require_no_secret`.
    """
    if isinstance(given, str):
        require_no_secret(given, option)
    elif isinstance(given, Mapping):
        for name, value in given.items():
            require_no_secrets(name, option)
            require_no_secrets(value, option)
    elif isinstance(given, list | tuple | set):
        for value in given:
            require_no_secrets(value, option)
