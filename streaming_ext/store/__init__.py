"""Files on disks and in object stores; a file under its final name is always complete."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming_ext.base.errors import UsageError
from streaming_ext.store.locations import local_path, require_no_secret

if TYPE_CHECKING:
    from streaming_ext.store.contract import Put, Storage, uploads
    from streaming_ext.store.disk import LocalStorage

__all__ = ["LocalStorage", "Put", "Storage", "open_storage", "uploads"]


def __getattr__(name: str) -> Any:
    """Import the modules that write when they are first used, since training only reads."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "disk" if name == "LocalStorage" else "contract"
    return getattr(import_module(f"{__name__}.{home}"), name)


def open_storage(url: str) -> "Storage":
    """Return the storage at an output's URL, without a request to it.

    Raises:
        UsageError: the scheme is not supported, the URL names no bucket or holds a secret, or `~`
            is no user's home.
    """
    from streaming_ext.store.buckets import OBJECT_STORES
    from streaming_ext.store.disk import LocalStorage

    require_no_secret(url, "output")
    scheme, separator, rest = url.partition("://")
    if not separator:
        return LocalStorage(local_path(url).absolute())
    if scheme == "file":
        return LocalStorage(Path(rest))
    if scheme in OBJECT_STORES:
        from streaming_ext.store.objects import ObjectStorage

        return ObjectStorage(url)
    raise UsageError(
        f"{url}: {scheme}:// is not supported as output; expected a folder, s3://, gs:// or az://."
    )
