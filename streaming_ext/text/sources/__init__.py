"""Source files: which there are, what pins each one's content, and how their bytes come here."""

from streaming_ext.text.sources.listing import list_sources
from streaming_ext.text.sources.local import hash_file, identify
from streaming_ext.text.sources.source_file import SourceFile, by_numbers, is_remote

__all__ = [
    "SourceFile",
    "by_numbers",
    "hash_file",
    "identify",
    "is_remote",
    "list_sources",
]
