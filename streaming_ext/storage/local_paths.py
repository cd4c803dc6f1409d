"""Paths of this machine as users write them: `~` expanded, and what no file can be named told."""

from pathlib import Path

from streaming_ext.errors import UsageError


def local_path(text: str | Path) -> Path:
    """A path with `~` and `~user` expanded.

    Raises:
        UsageError: there is no such user, or no home folder.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        home = str(text).partition("/")[0]
        raise UsageError(
            f"{text}: {home} is the home folder of nobody here. Write the path in full, or "
            f"./{home} where that is a name."
        ) from error


def require_possible_name(text: str) -> None:
    """Refuse a name that no record of a run could hold, or no file can have.

    Raises:
        UsageError: it is not UTF-8, or holds a zero byte.
    """
    if "\0" in text:
        raise UsageError(f"{text!r} holds a zero byte, which no path can.")
    if not is_utf8(text):
        raise UsageError(f"{shown_path(text)} is not UTF-8: records of a run could not hold it.")


def require_writable_name(text: str) -> None:
    """Refuse a path as `require_possible_name`, also for the folder that a relative one is in.

    Args:
        text: a path, or a URL.

    Raises:
        UsageError: it cannot be, or there is no such user.
    """
    require_possible_name(text)
    if "://" not in text and not is_utf8(str(local_path(text).absolute())):
        raise UsageError(
            f"{text} lies in a folder whose name is not UTF-8, which records of a run could not "
            f"hold: {shown_path(str(Path.cwd()))}. Start elsewhere."
        )


def is_utf8(path: str) -> bool:
    """Whether a path, as the system gives it, is text; other bytes come as surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in path)


def shown_path(path: str) -> str:
    """A path with its bytes that are not UTF-8 as `\\\\xff`."""
    return repr(path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))
