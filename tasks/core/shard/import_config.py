"""The configuration of an import: one object in command line, YAML and flow parameters."""

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import Field

from streaming_ext.base.errors import UsageError
from streaming_ext.format.spec import (
    DatasetSpec,
    IdOptions,
    IdType,
    ImportedIds,
    TokenizerIdentity,
    TokenSetName,
)
from streaming_ext.text.formats import TOKEN_SETS
from streaming_ext.text.listing import check_names
from streaming_ext.text.options import Options, PartOptions, Several, TokenizerOptions
from streaming_ext.text.sources import SourceFile, by_numbers
from streaming_ext.text.sources.find import files_of
from streaming_ext.text.sources.patterns import Takes
from streaming_ext.text.token_sets.set_file import forget_listings
from tasks.core.options import Execution, Fetching, Output


def list_token_files(patterns: Iterable[str], options: IdOptions) -> list[SourceFile]:
    """Find the files of a token set, each once, in the order of the numbers in their names.

    Args:
        patterns: files, folders (all files of the format in them, however deep), glob and brace
            patterns, on disk or as s3://, gs://, az:// or hf:// URLs.
        options: the options of the import.

    Raises:
        UsageError: a pattern matches nothing, or lies where no files are listed; or a type of ids
            is given, and the files say it.
        StorageError: a server refuses or does not answer.
    """
    reads = TOKEN_SETS[options.set_format]
    if options.dtype is not None and reads.states_type:
        raise UsageError(
            f"--dtype does not go with {options.set_format}: its files say the type. Leave it out."
        )
    forget_listings()
    found: dict[str, SourceFile] = {}
    for pattern in patterns:
        found_by = (_match(called, reads.is_in_folder) for called in reads.called(pattern))
        matches = next(filter(None, found_by), None)
        if matches is None:
            raise UsageError(
                f"{pattern}: no {' or '.join(reads.suffixes)} file of {options.set_format} there."
            )
        for source in matches:
            found[source.url] = reads.pinned(source, options) if source.remote else source
    check_names(found.values())
    return sorted(found.values(), key=lambda source: by_numbers(source.url))


def _match(pattern: str, takes: Takes) -> list[SourceFile]:
    if pattern.startswith(("http://", "https://")):
        raise UsageError(
            f"{pattern}: token sets are read from disks, s3://, gs://, az:// and hf://, where "
            "files beside each other are found. Copy it to one of them first."
        )
    return files_of(pattern, takes)


class Ids(Options):
    """The files that hold ids, and their format."""

    heading: ClassVar[str] = "Input"

    format: TokenSetName
    """Format of the files; see docs/how-to/import.md."""
    sources: Annotated[Several, Field(min_length=1)]
    """Files, folders, glob or brace patterns, or URLs, but no https://."""
    dtype: IdType | None = None
    """Type of an id, if the files do not say it."""


class ImportConfig(Execution, Output, Fetching, PartOptions, TokenizerOptions, Ids):
    """The files to import, the dataset to make of them, and how the work is done."""

    arguments: ClassVar[tuple[str, ...]] = ("format", "sources")

    tokenizer: Annotated[str, Field(min_length=1)]
    """Tokenizer that made the ids, named as for shard."""

    @property
    def imported(self) -> ImportedIds:
        """The options of reading ids."""
        return ImportedIds(set_format=self.format, dtype=self.dtype)

    def spec(self, tokenizer: TokenizerIdentity) -> DatasetSpec:
        """The fields of the configuration that decide the bytes.

        Raises:
            UsageError: a shard of this size holds no sample.
        """
        spec = DatasetSpec(
            **self.spec_fields,
            tokenizer=tokenizer,
            text_column="ids",  # a name that says nothing
            imported=self.imported,
        )
        spec.shard_format.require_possible()
        return spec
