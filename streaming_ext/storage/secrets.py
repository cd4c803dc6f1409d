"""URLs that hold a secret: refused before anything keeps them, and never repeated."""

import re

from streaming_ext.errors import UsageError

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/+(?P<authority>[^/]*)(?P<rest>.*)", re.DOTALL
)
_PORT = re.compile(r"[^:]*|[^:]*:\d+|\[[0-9a-fA-F:.]*\](:\d+)?")
# '?' is a wildcard in a pattern of sources; a query has an '=' behind it.
_QUERY = re.compile(r"\?[^/]*=|#[^/]*=")


def require_no_secret(text: str, option: str) -> None:
    """Refuse a URL with credentials or a query in it.

    Args:
        text: a URL, or anything else that an option takes.
        option: its name, for the message.

    Raises:
        UsageError: without a word of the URL but its scheme.
    """
    match = _URL.match(text.strip())
    if match is None:
        return
    scheme, authority = match["scheme"].lower(), match["authority"]
    if "@" in authority or not _PORT.fullmatch(authority):
        problem = "credentials"
    elif _QUERY.search(authority + match["rest"]):
        problem = "a query"
    else:
        return
    raise UsageError(
        f"{option}: this {scheme}:// URL must not hold {problem}. URLs stand in records, logs and "
        "Prefect's database. Give credentials through the environment (docs/storage.md); the URL "
        "is not repeated here."
    )
