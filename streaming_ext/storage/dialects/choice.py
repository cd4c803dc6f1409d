"""From the scheme of a URL to the way its store is spoken to."""

from streaming_ext.storage.dialects.azure import Azure
from streaming_ext.storage.dialects.base import Dialect
from streaming_ext.storage.dialects.google import Google
from streaming_ext.storage.dialects.s3 import S3

_DIALECTS: dict[str, Dialect] = {
    "s3": S3(),
    "s3a": S3(),
    "gs": Google(),
    "gcs": Google(),
    "az": Azure(),
    "abfs": Azure(),
}
OBJECT_STORES = tuple(_DIALECTS)


def dialect_of(scheme: str) -> Dialect:
    """How the store behind a scheme of `OBJECT_STORES` is spoken to."""
    return _DIALECTS[scheme]
