"""How each kind of object store is spoken to."""

from tasks.core.storage.dialects.base import Dialect, ObjectInfo, OpenUpload
from tasks.core.storage.dialects.choice import dialect_of

__all__ = ["Dialect", "ObjectInfo", "OpenUpload", "dialect_of"]
