"""A tokenizer's files in a Hugging Face repository, or in the Hub's cache on this host."""

import time
from functools import partial
from pathlib import Path

from streaming_ext.errors import TokenizerError, one_line
from streaming_ext.storage.faults import proxy_advice

_ATTEMPTS = 3
_ANSWER_SECONDS = 5.0


def hub_files(name: str, needed: str, wanted: str) -> tuple[Path, Path | None]:
    """Paths of two files of a repository.

    Where the Hub cannot be reached, they are taken from its cache.

    Args:
        name: of the repository.
        needed: the file that must be there.
        wanted: the file that may be there; None is returned where it is not.

    Raises:
        TokenizerError: there is no such file, or it cannot be had.
    """
    from huggingface_hub import constants, hf_hub_download  # no submodule comes with the package
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    unreachable = None
    if not constants.HF_HUB_OFFLINE:
        unreachable = _why_unreachable(constants.ENDPOINT)
    download = partial(hf_hub_download, name, local_files_only=unreachable is not None)
    try:
        path = Path(download(needed))
        try:
            return path, Path(download(wanted))
        except EntryNotFoundError:
            return path, None
    except Exception as error:  # noqa: BLE001 - network, authentication, repository, file
        reason = one_line(error)
        if unreachable is not None and isinstance(error, LocalEntryNotFoundError):
            reason = f"{unreachable}, and its cache on this host does not hold it"
        raise TokenizerError(
            f"Cannot get {needed} of the Hugging Face repository {name!r}: {reason}. (1) Check "
            "the name; (2) set HF_TOKEN where it is gated or private; (3) without a network, pass "
            f"the path of a {needed}."
        ) from None


def _why_unreachable(endpoint: str) -> str | None:
    """Why the Hub does not answer, None where it does; its own client would try for 30 s."""
    import httpx

    reason = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(1)
        try:
            httpx.head(endpoint, timeout=_ANSWER_SECONDS)
        except httpx.TransportError as error:
            reason = one_line(error) or type(error).__name__
        except (ImportError, ValueError, httpx.InvalidURL) as error:  # of a proxy
            return f"the proxy for {endpoint} cannot be used: {one_line(error)}"
        else:
            return None
    if advice := proxy_advice(endpoint):
        reason = f"{reason}.{advice}"
    return f"{endpoint} does not answer ({reason})"
