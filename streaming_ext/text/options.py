"""Options for reading text, in commands and streams: one class per group.

A configuration inherits its groups. The fields of its last base come first.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from streaming_ext.base.errors import UsageError
from streaming_ext.base.units import size_text
from streaming_ext.format.filters import Filters
from streaming_ext.format.spec import (
    SEPARATOR,
    DatasetSpec,
    FormatName,
    OnBadDocument,
    ReadOptions,
)
from streaming_ext.store.locations import (
    require_no_secrets,
    require_possible_name,
    require_writable_name,
)

if TYPE_CHECKING:
    from streaming_ext.text.tokenizer.tokenizer import Tokenizer

Several = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
]


def _named(given: Any) -> Any:
    """Split names, given in a list or in texts with commas between them."""
    texts = (given,) if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return given
    return tuple(name.strip() for text in texts for name in text.split(","))


KeptColumns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_named)]


class Options(BaseModel):
    """A configuration without secrets, whose paths can exist.

    Attributes:
        heading: the heading above the fields of a class, in help texts.
        arguments: the fields that the command line takes by position.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    heading: ClassVar[str] = "Options"
    arguments: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Let the command line take only `arguments` by position."""
        for name, field in cls.model_fields.items():
            field.kw_only = name not in cls.arguments

    @model_validator(mode="before")
    @classmethod
    def _no_secret(cls, given: Any) -> Any:
        """Refuse a URL that holds a secret before anything keeps or repeats it."""
        values = given if isinstance(given, Mapping) else {"config": given}
        for name, value in values.items():
            require_no_secrets(name, "config")
            # This checks values of any type and name: an error about a value shows the value.
            require_no_secrets(value, str(name))
        return given

    @field_validator(
        "output", "dataset", "datasets", "scratch", "tokenizer", mode="before", check_fields=False
    )
    @classmethod
    def _possible_paths(cls, given: Any, info: ValidationInfo) -> Any:
        """Refuse paths that no file can have, before any work is done."""
        is_name = info.field_name == "tokenizer"  # which may be no path at all
        require = require_possible_name if is_name else require_writable_name
        for path in given if isinstance(given, list | tuple) else (given,):
            if isinstance(path, str):
                try:
                    require(path)
                except UsageError as error:
                    raise ValueError(str(error).removesuffix(".")) from error
        return given


class SourceOptions(Options):
    """Files of text."""

    heading: ClassVar[str] = "Input"

    sources: Annotated[Several, Field(min_length=1)]
    """Files, folders, patterns, URLs, or a Hub dataset, ORG/NAME."""


class HubOptions(Options):
    """The configuration of a Hub dataset that is read."""

    heading: ClassVar[str] = "Input"

    hub_config: str | None = None
    """Configuration of a Hub dataset, such as sample-10BT."""


class PartOptions(Options):
    """The sizes of parts that source files are cut into."""

    heading: ClassVar[str] = "Input"

    part_size: Annotated[ByteSize, Field(ge=1024)] = ByteSize(2**30)
    """Cut larger files into parts of this size, if possible."""
    min_part_size: Annotated[ByteSize, Field(ge=0, validate_default=True)] = ByteSize(0)
    """Put small source files into one part until it has this size."""

    @field_validator("min_part_size")
    @classmethod
    def _below_part_size(cls, size: ByteSize, info: ValidationInfo) -> ByteSize:
        most = info.data.get("part_size")
        if most is not None and size > most:
            raise ValueError(f"must be at most --part-size {size_text(most)}")
        return size


class TokenizerName(Options):
    """The name of a tokenizer, alone so that it may come first."""

    heading: ClassVar[str] = "Input"

    tokenizer: Annotated[str, Field(min_length=1)]
    """Name, Hub repository, tokenizer.json, .model or .tiktoken file."""


class TokenizerOptions(TokenizerName):
    """The tokenizer of the text."""

    eot_token: str | None = None
    """End-of-text token, if the tokenizer does not name one."""
    bos_token: str | None = None
    """Token that begins each document; default: none."""
    pattern: str | None = None
    """How a rank file splits text: name (gpt2, llama3, qwen2) or regular expression."""

    def load_tokenizer(self) -> "Tokenizer":
        """Load the tokenizer of these options.

        Raises:
            TokenizerError: the tokenizer cannot be loaded.
        """
        from streaming_ext.text.tokenizer.load import load_tokenizer

        return load_tokenizer(
            self.tokenizer,
            eot_token=self.eot_token,
            bos_token=self.bos_token,
            pattern=self.pattern,
        )


class DocumentOptions(Options):
    """The columns of a source file that are the text of a document."""

    heading: ClassVar[str] = "Input"

    text_column: Annotated[Several, Field(min_length=1, validate_default=True)] = cast(
        "Several", "text"
    )
    """Column or path (meta.text) of the text; several join."""
    text_separator: str = r"\n\n"
    r"""Text between joined columns; \n is a new line, \t a tab."""
    format: FormatName | None = None
    """Format of all files; default: by name."""
    on_bad_document: OnBadDocument = "fail"
    """Treatment of an unreadable document."""


class KeptOptions(Options):
    """The columns that are stored."""

    heading: ClassVar[str] = "Input"

    keep_columns: KeptColumns = ()
    """Columns to store for each document, such as language,meta.url."""

    @field_validator("keep_columns")
    @classmethod
    def _named_once(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [name for name in columns if columns.count(name) > 1]:
            raise ValueError(f"{twice[0]!r} is given twice")
        return columns


class TextOptions(
    PartOptions,
    Filters,
    KeptOptions,
    DocumentOptions,
    TokenizerOptions,
    HubOptions,
    SourceOptions,
):
    """The text that is read, the documents that stay, and the parts that they are cut into."""

    max_files: Annotated[int | None, Field(gt=0)] = None
    """Read at most this many source files: the first ones."""

    @property
    def filters(self) -> Filters:
        """Filters that decide which documents stay."""
        return Filters(**{name: getattr(self, name) for name in Filters.model_fields})

    @property
    def read_options(self) -> ReadOptions:
        """Options for reading the source files."""
        return ReadOptions(
            columns=self.text_column,
            separator=self.text_separator.replace(r"\n", "\n").replace(r"\t", "\t"),
            source_format=self.format,
            on_bad_document=self.on_bad_document,
            filters=self.filters,
            kept=self.keep_columns,
        )

    def spec_with(self, **decided: Any) -> DatasetSpec:
        """Return the specification of a dataset of the text.

        Args:
            decided: the other fields of `DatasetSpec`.

        Raises:
            UsageError: a shard of this size holds no sample.
        """
        read = self.read_options
        joined = len(read.columns) > 1  # else the separator has no effect
        spec = DatasetSpec(
            text_column=read.columns if joined else read.columns[0],
            text_separator=read.separator if joined else SEPARATOR,
            source_format=read.source_format,
            on_bad_document=read.on_bad_document,
            filters=read.filters,
            keep_columns=read.kept,
            **decided,
        )
        spec.shard_format.require_possible()
        return spec
