"""What records and manifests are made of: strict values, files with size and hash, their JSON.

The version of a format, `MAJOR.MINOR`, and what is said of data made by a newer shardmill.

A change that older readers cannot follow raises the major number; a new field or a new value raises
the minor one. A writer puts down the lowest version that has all it uses, so the bytes of what uses
nothing new stay as they are. Version 1.0 is written as the number 1, the later ones as text:

    "format": 1        is 1.0
    "format": "1.3"    is 1.3: a reader of 1.2 refuses it and says that it is newer

The hash that names the content of every file of a dataset.
"""

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

import xxhash
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from streaming_ext.base.errors import CorruptDatasetError, NewerVersionError, UsageError
from streaming_ext.base.plain_faults import plain_faults

_TEXT = re.compile(r"(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class FormatVersion:
    """One version; versions compare in their order."""

    major: int
    minor: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def read(cls, value: object) -> "FormatVersion | None":
        """What stands in a file, None where that is no version."""
        if type(value) is int and value > 0:
            return cls(value)
        if isinstance(value, str) and (match := _TEXT.fullmatch(value)):
            return cls(int(match[1]), int(match[2]))
        return None


def refuse_newer(value: object, known: FormatVersion, *, what: str) -> None:
    """Refuse what a newer shardmill made, before any other fault is looked for.

    Args:
        value: what the data say that their version is; anything that is no version is let through.
        known: the newest version that is read here.
        what: the data's name for the message.

    Raises:
        NewerVersionError: their version is above `known`.
    """
    found = FormatVersion.read(value)
    if found is not None and found > known:
        raise NewerVersionError(
            f"{what} was made by a newer shardmill (format {found}), this one reads up to format "
            f"{known}. Update shardmill here."
        )


HASH: Final = "xxh128"


def content_hash(data: bytes | memoryview) -> str:
    """XXH3-128 of some bytes, as hex."""
    digest = xxhash.xxh3_128()  # which lets other threads go on meanwhile; the short form does not
    digest.update(data)
    return digest.hexdigest()


FORMAT: Final = FormatVersion(1, 2)  # the newest that is read here
_SEAL: Final = b',\n "xxh128": "'  # begins the last line of a sealed file, behind all other keys
_END: Final = b"\n}\n"

Model = TypeVar("Model", bound=BaseModel)

Count = Annotated[int, Field(ge=0)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
# Inside the dataset's folder: no absolute path, no step upwards, no odd characters.
RelativePath = Annotated[
    str, Field(pattern=r"^[a-z0-9_-]+(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*(\.[a-z]+)?$")
]


class Value(BaseModel):
    """Unchangeable; a field that is not known or has another type is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Brief(Value):
    """A value that leaves out, in a file, what is as it is in most datasets: each field's default.

    Attributes:
        SINCE_1_0: fields with a default that the first version of the format had already.
    """

    SINCE_1_0: ClassVar[frozenset[str]] = frozenset({"format"})

    @model_serializer(mode="wrap")
    def _without_the_usual(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        for name, field in type(self).model_fields.items():
            if name != "format" and getattr(self, name) == field.default:
                values.pop(name, None)
        return values

    def says_more(self) -> bool:
        """Whether it says something that readers of the first version of the format do not know."""
        return any(
            getattr(self, name) != field.default
            for name, field in type(self).model_fields.items()
            if not field.is_required() and name not in self.SINCE_1_0
        )


class Sealed(Value):
    """A file that holds, in its last line, the hash of all its bytes before that line."""


def require_version(value: Brief, *, newer: bool, newest: bool = False) -> None:
    """Have a file say the lowest version of the format that has all it uses.

    Args:
        value: what the file holds, with a field `format`.
        newer: whether it uses what came after the first version.
        newest: whether it uses what came after version 1.1.
    """
    value.__dict__["format"] = "1.2" if newest else "1.1" if newer else 1


class FileRecord(Value):
    """One file: its path below the dataset's root, its size in bytes, its XXH3-128."""

    path: RelativePath
    size: Count
    xxh128: Hash

    @classmethod
    def of(cls, path: str, data: bytes) -> Self:
        """The record of a file that holds `data`."""
        return cls(path=path, size=len(data), xxh128=content_hash(data))


def to_json(value: BaseModel) -> bytes:
    """The bytes of a record or manifest: keys sorted, one value a line, for `diff` to read well."""
    text = json.dumps(value.model_dump(mode="json"), sort_keys=True, indent=1, ensure_ascii=False)
    data = f"{text}\n".encode()
    return sealed(data) if isinstance(value, Sealed) else data


def sealed(data: bytes) -> bytes:
    """The bytes of a record, with the hash of themselves as its last line."""
    body = data.removesuffix(_END)
    return body + _SEAL + content_hash(body).encode() + b'"' + _END


def _unsealed(data: bytes) -> bytes:
    """The bytes of a record without its last line.

    Raises:
        CorruptDatasetError: that is not the hash of the other ones.
    """
    unsealed = data.rpartition(_SEAL)[0] + _END
    if data != sealed(unsealed):
        raise CorruptDatasetError("it was changed after it was written (its last line is its hash)")
    return unsealed


def from_json(model: type[Model], data: bytes, *, where: str) -> Model:
    """Read a record or manifest.

    Raises:
        NewerVersionError: a newer shardmill made it; `where` names the file.
        CorruptDatasetError: it is damaged.
    """
    try:
        return model.model_validate_json(_unsealed(data) if issubclass(model, Sealed) else data)
    except ValidationError as error:
        reason = plain_faults(error)
    except (CorruptDatasetError, UsageError) as error:  # in our own words, while a value is made
        reason = str(error)
    refuse_newer(_version(data), FORMAT, what=where)
    kind = re.sub(r"(?<!^)(?=[A-Z])", " ", model.__name__).lower()  # PartRecord -> part record
    raise CorruptDatasetError(f"{where} is no valid {kind}: {reason}")


def _version(data: bytes) -> object:
    """What a record or manifest says that its format is, None where it cannot be told."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value.get("format") if isinstance(value, dict) else None
