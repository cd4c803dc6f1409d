"""Options of what is read, as commands and streams of text have them: a class for each group.

A configuration inherits its groups. The fields of its last base stand first.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

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

from streaming_ext.errors import UsageError
from streaming_ext.storage.local_paths import require_possible_name, require_writable_name
from streaming_ext.storage.secrets import require_no_secrets
from streaming_ext.text.documents.options import FormatName, OnBadDocument, ReadOptions
from streaming_ext.text.filters.filters import Filters
from streaming_ext.units import size_text

Several = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
]


def _named(given: Any) -> Any:
    """Names that stand in a list, or in texts with commas between."""
    texts = (given,) if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return given
    return tuple(name.strip() for text in texts for name in text.split(","))


KeptColumns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_named)]


class Options(BaseModel):
    """A configuration that nothing keeps a secret of, with paths that there can be.

    Attributes:
        heading: above the fields of a class, in help texts.
        arguments: fields that the command line takes by their position.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    heading: ClassVar[str] = "Options"
    arguments: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Let the command line take only `arguments` by their position."""
        for name, field in cls.model_fields.items():
            field.kw_only = name not in cls.arguments

    @model_validator(mode="before")
    @classmethod
    def _no_secret(cls, given: Any) -> Any:
        """Refuse a URL that holds a secret before anything keeps or repeats it."""
        values = given if isinstance(given, Mapping) else {"config": given}
        for name, value in values.items():
            require_no_secrets(name, "config")
            # Of other kinds and names too: what is wrong with a value is told with the value.
            require_no_secrets(value, str(name))
        return given

    @field_validator(
        "output", "dataset", "datasets", "scratch", "tokenizer", mode="before", check_fields=False
    )
    @classmethod
    def _possible_paths(cls, given: Any, info: ValidationInfo) -> Any:
        """Refuse what could be written to nowhere before any work is done."""
        is_name = info.field_name == "tokenizer"  # it may be no path at all
        require = require_possible_name if is_name else require_writable_name
        for path in given if isinstance(given, list | tuple) else (given,):
            if isinstance(path, str):
                try:
                    require(path)
                except UsageError as error:
                    raise ValueError(str(error).removesuffix(".")) from error
        return given


class Input(Options):
    """Files of text."""

    heading: ClassVar[str] = "Input"

    sources: Annotated[
        Several,
        Field(
            min_length=1,
            description="Files of text, folders, glob or brace patterns; also hf://, s3://, gs://, "
            "az:// and https:// URLs, or a dataset of the Hub, ORG/NAME.",
        ),
    ]


class Hub(Options):
    """What of a dataset of the Hub is read."""

    heading: ClassVar[str] = "Input"

    hub_config: Annotated[
        str | None,
        Field(description="Configuration of a dataset of the Hub, such as sample-10BT."),
    ] = None


class Parts(Options):
    """How source files are cut into parts."""

    heading: ClassVar[str] = "Input"

    part_size: Annotated[
        ByteSize,
        Field(
            ge=1024,
            description="Cut larger source files into parts of so many bytes, where that can be.",
        ),
    ] = ByteSize(2**30)
    min_part_size: Annotated[
        ByteSize,
        Field(
            ge=0,
            validate_default=True,
            description="Take small source files together until a part has so many bytes.",
        ),
    ] = ByteSize(0)

    @field_validator("min_part_size")
    @classmethod
    def _below_part_size(cls, size: ByteSize, info: ValidationInfo) -> ByteSize:
        most = info.data.get("part_size")
        if most is not None and size > most:
            raise ValueError(f"must be at most --part-size {size_text(most)}")
        return size


class Tokenizer(Options):
    """What turns text into ids."""

    heading: ClassVar[str] = "Input"

    tokenizer: Annotated[
        str,
        Field(
            min_length=1,
            description="tiktoken encoding (gpt2), .tiktoken rank file, tokenizer.json, "
            "or Hugging Face repository.",
        ),
    ]
    eot_token: Annotated[
        str | None, Field(description="End-of-text token, where the tokenizer does not tell.")
    ] = None
    pattern: Annotated[
        str | None,
        Field(
            description="Pretokenization of a .tiktoken file whose name does not tell: the name "
            "of an encoding (gpt2) or a regular expression."
        ),
    ] = None


class Documents(Options):
    """What of a source file is a document, and what is kept of it."""

    heading: ClassVar[str] = "Input"

    text_column: Annotated[
        Several,
        Field(
            min_length=1,
            validate_default=True,
            description="Column that holds the documents, or a path such as meta.text; several "
            "are joined, each given with the option again.",
        ),
    ] = cast("Several", "text")
    text_separator: Annotated[
        str,
        Field(
            description=r"What stands between the texts of several columns; \n is a new line, \t a "
            "tab."
        ),
    ] = r"\n\n"
    format: Annotated[
        FormatName | None,
        Field(description="Format of all source files; default: as the name of each tells."),
    ] = None
    on_bad_document: Annotated[
        OnBadDocument,
        Field(
            description="Whether a document that cannot be read fails its file, or is left out, "
            "counted and listed."
        ),
    ] = "fail"
    keep_columns: Annotated[
        KeptColumns,
        Field(
            description="Columns, or paths such as meta.url, whose values are stored with the list "
            "of documents: language,url. Texts, numbers, True and False.",
        ),
    ] = ()

    @field_validator("keep_columns")
    @classmethod
    def _named_once(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [name for name in columns if columns.count(name) > 1]:
            raise ValueError(f"{twice[0]!r} stands there twice")
        return columns


class TextOptions(Parts, Filters, Documents, Tokenizer, Hub, Input):
    """Which text is read, which documents stay, and how it is cut into parts."""

    max_files: Annotated[
        int | None, Field(gt=0, description="Take only the first so many source files.")
    ] = None

    @property
    def filters(self) -> Filters:
        """Which documents stay."""
        return Filters(**{name: getattr(self, name) for name in Filters.model_fields})

    @property
    def read_options(self) -> ReadOptions:
        """What is read of the source files."""
        return ReadOptions(
            columns=self.text_column,
            separator=self.text_separator.replace(r"\n", "\n").replace(r"\t", "\t"),
            source_format=self.format,
            on_bad_document=self.on_bad_document,
            filters=self.filters,
            kept=self.keep_columns,
        )
