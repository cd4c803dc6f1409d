"""How each kind of object store is spoken to."""

from streaming_ext.storage.dialects.base import Dialect, ObjectInfo, OpenUpload
from streaming_ext.storage.dialects.choice import dialect_of

__all__ = ["Dialect", "ObjectInfo", "OpenUpload", "dialect_of"]
