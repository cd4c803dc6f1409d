"""The tokenizer that was saved with a dataset, and its comparison with a given one."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from streaming_ext.base.errors import ConfigMismatchError
from streaming_ext.base.extras import extras_named
from streaming_ext.format.reading import read_listed
from streaming_ext.reading.cache import ShardCache
from streaming_ext.text.tokenizer.probes import difference, open_listed, saved_probes
from streaming_ext.text.tokenizer.tokenizer import Tokenizer


@extras_named()
def open_tokenizer(cache: ShardCache) -> Tokenizer:
    """Open the tokenizer from its files in the dataset.

    Raises:
        UsageError: the dataset does not say which tokenizer made it.
        TokenizerError: its files are damaged.
        MissingExtraError: its library is not installed.
    """
    return open_listed(cache.index.manifest, partial(read_listed, cache.source), cache.source.url)


@extras_named()
def require_tokenizer(caches: Iterable[ShardCache], given: Any) -> None:
    """Check that a tokenizer gives the ids of the tokenizers that made the datasets.

    Raises:
        ConfigMismatchError: it gives other ids; the message names the first text.
        UsageError: it is no tokenizer, or a dataset does not say which tokenizer made it.
    """
    for identity, cache in {cache.index.tokenizer: cache for cache in caches}.items():
        where, read = cache.source.url, partial(read_listed, cache.source)
        probes = saved_probes(cache.index.manifest, read, where)
        if identity is not None and (words := difference(probes, given, identity, where)):
            raise ConfigMismatchError(
                f"{words} Train with dataset.tokenizer, or make the dataset again."
            )
