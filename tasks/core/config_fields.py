"""What the configurations of all commands have in common."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

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

from streaming_ext.dataset.compression import Compression
from streaming_ext.dataset.formats import FORMATS
from streaming_ext.errors import UsageError
from streaming_ext.storage.local_paths import require_possible_name, require_writable_name
from streaming_ext.storage.secrets import require_no_secrets
from streaming_ext.units import size_text

Workers = Annotated[
    int, Field(gt=0, le=1024, description="Worker processes a host; default: one a core.")
]
Scratch = Annotated[
    str | None,
    Field(
        description="Folder for work in progress; default: beside a local output, else in "
        "the temporary folder."
    ),
]


Columns = Annotated[
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


def cores() -> int:
    """How many worker processes there are unless a number is given."""
    return os.cpu_count() or 1


class WithoutSecrets(BaseModel):
    """A configuration that nothing keeps a secret of, with paths that there can be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


class CheckedConfig(WithoutSecrets):
    """What all configurations of a run refuse, in whatever fields they have."""

    @field_validator("compression", check_fields=False)
    @classmethod
    def _known_compression(cls, text: str | None) -> str | None:
        if text is None:
            return None
        try:
            Compression.parse(text)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return text

    @field_validator("output_format", check_fields=False)
    @classmethod
    def _known_format(cls, name: str) -> str:
        if name not in FORMATS:
            raise ValueError(f"must be {' or '.join(FORMATS)}")
        return name

    @field_validator("min_part_size", check_fields=False)
    @classmethod
    def _below_part_size(cls, size: ByteSize, info: ValidationInfo) -> ByteSize:
        most = info.data.get("part_size")
        if most is not None and size > most:
            raise ValueError(f"must be at most --part-size {size_text(most)}")
        return size
