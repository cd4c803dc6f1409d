"""URLs that hold a secret: refused before anything keeps them, and never repeated."""

import re
from collections.abc import Mapping

from streaming_ext.errors import UsageError

_URL = re.compile(
    r"(?P<scheme>[A-Za-z0-9][A-Za-z0-9+.}-]*):}?/+(?P<authority>[^/]*)(?P<rest>.*)", re.DOTALL
)
_PATHS = {"file", "local"}  # name no host
_PORT = re.compile(r"[^:]*|[^:]*:\d+|\[[0-9a-fA-F:.]*\](:\d+)?")
# '?' is a wildcard in a pattern of sources; a query has an '=' behind it.
_QUERY = re.compile(r"\?[^/]*=|#[^/]*=")


def _secret_in(text: str) -> tuple[str, str] | None:
    """The scheme of a URL, and what it holds and must not; None where that is all right."""
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
    """Whether a text is a URL with credentials or a query in it."""
    return _secret_in(text) is not None


def require_no_secret(text: str, option: str) -> None:
    """Refuse a URL with credentials or a query in it.

    Args:
        text: a URL, or anything else that an option takes.
        option: its name, for the message.

    Raises:
        UsageError: without a word of the URL but its scheme.
    """
    if found := _secret_in(text):
        scheme, problem = found
        raise UsageError(
            f"{option}: this {scheme}:// URL must not hold {problem}. URLs stand in records, logs "
            "and Prefect's database. Give credentials through the environment (docs/storage.md); "
            "the URL is not repeated here."
        )


def require_no_secrets(given: object, option: str) -> None:
    """Refuse such a URL anywhere in what was given: a text, or lists and mappings of them.

    Raises:
        UsageError: as `require_no_secret`.
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
