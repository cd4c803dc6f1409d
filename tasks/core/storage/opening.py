"""From the URL of an output to the storage behind it."""

from pathlib import Path

from streaming_ext.errors import UsageError
from streaming_ext.storage.dialects.choice import OBJECT_STORES
from streaming_ext.storage.local_paths import local_path
from streaming_ext.storage.secrets import require_no_secret
from tasks.core.storage.contract import Storage
from tasks.core.storage.local import LocalStorage


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
        from tasks.core.storage.object_store import ObjectStorage

        return ObjectStorage(url)
    raise UsageError(
        f"{url}: {scheme}:// is not supported as output; expected a folder, s3://, gs:// or az://."
    )
