"""The tokenizer of a dataset, as it was saved with the data."""

from pathlib import Path
from tempfile import TemporaryDirectory

from streaming_ext.base.errors import UsageError
from streaming_ext.base.extras import extras_named
from streaming_ext.format.reading import read_listed
from streaming_ext.reading.cache import ShardCache
from streaming_ext.text.tokenizer.load import open_saved
from streaming_ext.text.tokenizer.tokenizer import Tokenizer


@extras_named()
def open_tokenizer(cache: ShardCache) -> Tokenizer:
    """Read the files of the tokenizer, and open it.

    Raises:
        UsageError: the dataset does not say which tokenizer made it.
        TokenizerError: its files are damaged.
        MissingExtraError: its library is not installed.
    """
    manifest = cache.index.manifest
    if manifest is None or not manifest.tokenizer_files:
        raise UsageError(
            f"{cache.source.url} does not hold its tokenizer: it was not made by shardmill. Open "
            "the tokenizer by its name."
        )
    with TemporaryDirectory() as folder:
        for file in manifest.tokenizer_files:
            path = Path(folder) / Path(file.path).name
            path.write_bytes(read_listed(cache.source, file))
        return open_saved(Path(folder))
