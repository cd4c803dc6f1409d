"""Comparison of a tokenizer with the one that a dataset was made with."""

from functools import partial
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from streaming_ext.base.errors import MissingTokenError
from streaming_ext.store import open_storage
from streaming_ext.text.options import Options, TokenizerOptions
from streaming_ext.text.tokenizer.engine import token_texts
from streaming_ext.text.tokenizer.load import load_like
from streaming_ext.text.tokenizer.probes import difference, lacking, other_ids, saved_probes
from tasks.core.reading.dataset_files import open_dataset, open_tokenizer, read_listed


class _Compared(Options):
    """The dataset that holds its tokenizer."""

    heading: ClassVar[str] = "Input"

    dataset: Annotated[str, Field(min_length=1)]
    """Folder or URL of a published dataset."""


class CheckTokenizerConfig(TokenizerOptions, _Compared):
    """A dataset, and the tokenizer of a model; options that are left out are as in the dataset."""

    arguments: ClassVar[tuple[str, ...]] = ("dataset", "tokenizer")


class TokenizerCheck(BaseModel):
    """The result of comparing a tokenizer with a dataset's tokenizer.

    Attributes:
        same: True if no difference was found.
        is_copy: True if everything that decides ids is the same, so that no text can differ.
        texts: the number of texts that were compared.
        difference: the first text that differs, or the missing token, in words; else empty.
    """

    model_config = ConfigDict(frozen=True)

    same: bool
    is_copy: bool
    texts: int
    difference: str


def compare_tokenizers(config: CheckTokenizerConfig) -> TokenizerCheck:
    """Compare tokenizers on the dataset's probes, and if they differ, on the text of each token.

    Raises:
        UsageError: there is no such tokenizer, or the dataset holds none.
        DatasetError: there is no dataset, or it is damaged.
    """
    files, manifest = open_dataset(open_storage(config.dataset))
    identity, where = manifest.spec.tokenizer, str(files.storage)
    try:
        given = load_like(
            config.tokenizer,
            identity,
            eot_token=config.eot_token,
            bos_token=config.bos_token,
            pattern=config.pattern,
        )
    except MissingTokenError as error:
        words = lacking(error, identity, where, config.tokenizer)
        return TokenizerCheck(same=False, is_copy=False, texts=0, difference=words)
    probes = saved_probes(manifest, partial(read_listed, files), where)
    words, texts = difference(probes, given, identity, where, config.tokenizer), len(probes)
    is_copy = given.fingerprint == identity.fingerprint
    if not words and not is_copy:
        saved = open_tokenizer(files, manifest.spec)
        expected = {text: saved.encode(text) for text in token_texts(saved)}
        words = other_ids(expected, given.encode, config.tokenizer, where)
        texts += len(expected)
    return TokenizerCheck(same=not words, is_copy=is_copy, texts=texts, difference=words)
