"""Files on disks and in object stores, which appear whole under their final name, or not at all."""

from pathlib import Path

from streaming_ext.base.errors import UsageError
from streaming_ext.store.client import OBJECT_STORES
from streaming_ext.store.contract import Put, Storage, uploads
from streaming_ext.store.disk import LocalStorage
from streaming_ext.store.locations import local_path, require_no_secret

__all__ = ["LocalStorage", "Put", "Storage", "open_storage", "uploads"]


def open_storage(url: str) -> Storage:
    """The storage behind the URL of an output; nothing is asked of it yet.

    Raises:
        UsageError: no storage is known for this scheme, or the URL names no bucket
            or holds a secret, or `~` is nobody's.
    """
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
