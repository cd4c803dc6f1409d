"""The one configuration of an import: the same object in command line, YAML and flow parameters."""

from functools import lru_cache
from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from streaming_ext.dataset.spec import DatasetSpec, ImportedIds, TokenizerIdentity
from streaming_ext.text.documents.options import (
    IdOptions,
    IdType,
    ReadOptions,
    RowsOf,
    TokenSetName,
)
from streaming_ext.text.options import Options, Parts, Tokenizer
from streaming_ext.text.tokenizer.tokenizer import load_tokenizer
from tasks.core.config import ShardConfig
from tasks.core.options import Execution, Fetching, Output

_OWN = {"format", "dtype", "rows"}  # what a run of `shard` does not have


class ImportRunConfig(ShardConfig):
    """The run of an import: `shard` whose sources hold ids."""

    imported: ImportedIds

    @property
    def light(self) -> bool:
        """Nothing is tokenized."""
        return True

    @property
    def read_options(self) -> ReadOptions:
        """What is read of the source files."""
        eot_id, vocab_size = _vocabulary(self.tokenizer, self.eot_token, self.pattern)
        ids = IdOptions(
            eot_id=eot_id, vocab_size=vocab_size, **self.imported.model_dump(exclude={"holdout_by"})
        )
        return ReadOptions(columns=self.text_column, ids=ids)

    def spec(self, tokenizer: TokenizerIdentity) -> DatasetSpec:
        """The part of the configuration that decides the bytes."""
        return super().spec(tokenizer).model_copy(update={"imported": self.imported})


@lru_cache(1)
def _vocabulary(name: str, eot_token: str | None, pattern: str | None) -> tuple[int, int]:
    """The end-of-text id of a tokenizer, and how many ids it has."""
    tokenizer = load_tokenizer(name, eot_token=eot_token, pattern=pattern)
    return tokenizer.eot_id, tokenizer.vocab_size


class Ids(Options):
    """Which files hold ids, and how."""

    heading: ClassVar[str] = "Input"

    format: Annotated[
        TokenSetName,
        Field(description="What the files are; docs/formats.md tells of each."),
    ]
    sources: Annotated[
        tuple[str, ...],
        Field(
            min_length=1,
            description="Files of ids, folders, glob or brace patterns; on disk or s3://, gs://, "
            "az://, hf://.",
        ),
    ]
    dtype: Annotated[
        IdType | None,
        Field(
            description="Type of an id, for files that do not tell it; default: the usual one for "
            "the vocabulary."
        ),
    ] = None
    rows: Annotated[
        RowsOf,
        Field(description="What a sample of WebDataset is: as many tokens each, or a document."),
    ] = "samples"

    @field_validator("rows")
    @classmethod
    def _of_use(cls, rows: RowsOf, info: ValidationInfo) -> RowsOf:
        if rows != "samples" and info.data.get("format") != "webdataset":
            raise ValueError(f"is of no use with {info.data.get('format')}: it is for webdataset")
        return rows


class ImportConfig(Execution, Output, Fetching, Parts, Tokenizer, Ids):
    """What to import, as what, where to, and with which means."""

    arguments: ClassVar[tuple[str, ...]] = ("format", "sources")

    tokenizer: Annotated[
        str,
        Field(
            min_length=1,
            description="That the ids were made with: tiktoken encoding (gpt2), .tiktoken rank "
            "file, tokenizer.json, or Hugging Face repository.",
        ),
    ]

    @property
    def run(self) -> ImportRunConfig:
        """The run that does it."""
        same = {name: getattr(self, name) for name in ImportConfig.model_fields.keys() - _OWN}
        return ImportRunConfig(
            **same,
            text_column=("ids",),  # a name that says nothing
            engine="reference",
            imported=ImportedIds(set_format=self.format, dtype=self.dtype, rows=self.rows),
        )
