"""Source files, their listing, and access to their bytes."""

from streaming_ext.text.sources.source_file import SourceFile, by_numbers, is_remote

__all__ = ["SourceFile", "by_numbers", "is_remote"]
