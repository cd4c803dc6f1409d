"""What records and manifests are made of: strict values, files with size and hash, their JSON."""

import json
import re
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.errors import CorruptDatasetError, UsageError
from streaming_ext.format_version import FormatVersion, refuse_newer
from streaming_ext.plain_faults import plain_faults

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
