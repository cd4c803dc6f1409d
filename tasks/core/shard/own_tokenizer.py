"""The tokenizer of a dataset that is extended: its own copy, or one that is given in its place."""

from dataclasses import replace
from pathlib import Path

from streaming_ext.base.errors import DatasetError, TokenizerError
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.schema import FileRecord
from streaming_ext.store import Storage
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.reading.dataset_files import DatasetFiles, open_tokenizer


def own_tokenizer(files: DatasetFiles, manifest: Manifest, instead: str | None) -> Tokenizer:
    """The tokenizer that a dataset was made with.

    Args:
        files: of the dataset.
        manifest: of it.
        instead: names one that is taken where the dataset's own copy is lost or damaged.

    Raises:
        TokenizerError: there is neither, or what was given is another one.
        StorageError: a file cannot be read.
    """
    identity = manifest.spec.tokenizer
    try:
        return open_tokenizer(files, manifest.spec)
    except TokenizerError as error:
        if instead is None:
            raise TokenizerError(
                f"{error} Give the tokenizer that the dataset was made with as --tokenizer: it is "
                "put there again."
            ) from error
    pattern = identity.pattern if instead.endswith(".tiktoken") else None
    found = load_tokenizer(instead, eot_token=identity.eot_token, pattern=pattern)
    if found.fingerprint != identity.fingerprint:
        raise TokenizerError(
            f"{instead} has the fingerprint {found.fingerprint}, the dataset was made with "
            f"{identity.name}, {identity.fingerprint}. Give that one."
        )
    return replace(found, name=identity.name)


def put_lost_tokenizer(manifest: Manifest, folder: Path, storage: Storage) -> None:
    """Put again what a dataset lost of its tokenizer.

    Args:
        manifest: of the dataset.
        folder: that the tokenizer was saved in for the run.
        storage: the dataset's.

    Raises:
        DatasetError: what was saved is not what the manifest lists.
        StorageError: the dataset cannot be read or written.
    """
    for file in manifest.tokenizer_files:
        try:
            if FileRecord.of(file.path, storage.read(file.path)) == file:
                continue
        except FileNotFoundError:
            pass
        data = (folder / Path(file.path).name).read_bytes()
        if FileRecord.of(file.path, data) != file:
            raise DatasetError(
                f"{storage} lost {file.path}, which cannot be made again. Put it back from a copy "
                "of the dataset."
            )
        storage.put(file.path, data)
