"""Source files: what each one is, how they are listed and how their bytes are read."""

from streaming_ext.text.sources.source_file import SourceFile, by_numbers, is_remote

__all__ = ["SourceFile", "by_numbers", "is_remote"]
