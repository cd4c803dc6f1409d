"""The bytes of a source file wherever it lies: any range, without fetching the whole."""

from functools import cached_property

from streaming_ext.errors import SourceError
from streaming_ext.text.sources.fetch import Reader, open_reader
from streaming_ext.text.sources.source_file import SourceFile


class SourceFileBytes:
    """One source file, read in ranges; see `documents.source_format.SourceBytes`."""

    def __init__(self, source: SourceFile) -> None:
        self.name, self.size = source.url, source.size
        self._source = source

    @cached_property
    def _reader(self) -> Reader:
        return open_reader(self._source)

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end).

        Raises:
            SourceError: the file is gone or shorter than listed.
            StorageError: a server refuses or does not answer.
        """
        local = self._source.local_path
        if local is None:
            return self._reader.read(start, end)
        try:
            with local.open("rb", buffering=0) as file:
                file.seek(start)
                data = file.read(end - start)
        except OSError as error:
            raise SourceError(f"{self.name}: cannot be read: {error.strerror}.") from error
        if len(data) != end - start:
            raise SourceError(f"{self.name}: shorter than when it was listed. Run again.")
        return data
