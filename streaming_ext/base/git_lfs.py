"""Git LFS: a clone without `git lfs pull` holds pointers in place of large files."""

from streaming_ext.base.errors import UsageError

MOST_POINTER_BYTES = 1024
_BEGIN = b"version https://git-lfs.github.com/spec/"


def not_a_pointer(data: bytes, name: str) -> bytes:
    """Return the data of a file unchanged, after checking that they are no pointer.

    Args:
        data: the file, or its beginning.
        name: the file's name in messages.

    Raises:
        UsageError: the data are a pointer.
    """
    if data.startswith(_BEGIN):
        raise UsageError(
            f"{name}: a pointer of Git LFS stands in place of the file. Run `git lfs pull` in its "
            "repository."
        )
    return data
