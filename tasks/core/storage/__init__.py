"""Where a dataset is written: files that appear whole under their final name, or not at all."""

from tasks.core.storage.contract import Storage
from tasks.core.storage.local import LocalStorage
from tasks.core.storage.opening import open_storage

__all__ = ["LocalStorage", "Storage", "open_storage"]
