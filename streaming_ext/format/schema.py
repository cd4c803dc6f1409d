"""The strict values of which records and manifests consist, and their JSON.

The version of a format is a whole number. Data of a higher version are refused as newer before they
are checked for other faults.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import xxhash
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
)

from streaming_ext.base.errors import CorruptDatasetError, NewerVersionError, UsageError
from streaming_ext.base.plain_faults import plain_faults


def refuse_newer(value: object, known: int, *, what: str) -> None:
    """Refuse data of a newer shardmill.

    Args:
        value: the version that the data state; anything but a whole number passes.
        known: the newest version that this shardmill reads.
        what: name of the data for the message.

    Raises:
        NewerVersionError: the version of the data is above `known`.
    """
    if type(value) is int and value > known:
        raise NewerVersionError(
            f"{what} was made by a newer shardmill (format {value}), this one reads up to format "
            f"{known}. Update shardmill here."
        )


def refuse_newer_json(data: bytes, field: str, known: int, *, what: str) -> None:
    """Refuse a newer version in a field of a JSON object; see `refuse_newer`. All else passes."""
    with suppress(ValueError, RecursionError, AttributeError):
        refuse_newer(json.loads(data).get(field), known, what=what)


HASH: Final = "xxh128"


def content_hash(data: bytes | memoryview) -> str:
    """Return the XXH3-128 of some bytes as hexadecimal digits."""
    digest = xxhash.xxh3_128()  # releases the GIL; the short form does not
    digest.update(data)
    return digest.hexdigest()


FORMAT: Final = 1  # the version of records and manifests
_SEAL: Final = b',\n "xxh128": "'  # starts the last line of a sealed file
_END: Final = b"\n}\n"

Model = TypeVar("Model", bound=BaseModel)

Count = Annotated[int, Field(ge=0)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
# A path inside the dataset's folder: not absolute, without `..` and odd characters.
RelativePath = Annotated[
    str, Field(pattern=r"^[a-z0-9_-]+(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*(\.[a-z]+)?$")
]


def require_all(rules: Mapping[str, bool]) -> None:
    """Refuse a value whose fields contradict each other.

    Args:
        rules: the result of each rule, by the fields that the rule checks.

    Raises:
        ValueError: the message names the fields of the broken rules.
    """
    if broken := [fields for fields, holds in rules.items() if not holds]:
        raise ValueError(f"contradicts itself in {'; '.join(broken)}")


def differing(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path of each value that differs within two nested ones, and both values.

    {"a": {"b": 1}} and {"a": {"b": 2}, "c": 3}: a.b, 1, 2 and c, None, 3
    """
    if isinstance(ours or theirs, dict) and isinstance(theirs or ours, dict):
        ours, theirs = ours or {}, theirs or {}
        for name in ours | theirs:
            inner = f"{path}.{name}" if path else name
            yield from differing(ours.get(name), theirs.get(name), inner)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differing(*pair, f"{path}[{number}]")
    elif ours != theirs:
        yield path, ours, theirs


class Value(BaseModel):
    """A frozen value that refuses unknown fields and values of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Sealed(Value):
    """The record of a part: a file whose last line is the hash of all bytes before that line."""

    format: Literal[1] = 1
    part: Count


class FileRecord(Value):
    """One file: its path below the dataset's root, its size in bytes and its XXH3-128."""

    path: RelativePath
    size: Count
    xxh128: Hash

    @classmethod
    def of(cls, path: str, data: bytes) -> Self:
        """Return the record of a file that holds `data`."""
        return cls(path=path, size=len(data), xxh128=content_hash(data))


def to_json(value: BaseModel) -> bytes:
    """Return the bytes of a record or manifest: sorted keys and one value per line, for `diff`.

    Fields with their default value are left out, except `format`.
    """
    values = value.model_dump(mode="json", exclude_defaults=True)
    values |= value.model_dump(include={"format"})
    text = json.dumps(values, sort_keys=True, indent=1, ensure_ascii=False)
    data = f"{text}\n".encode()
    return sealed(data) if isinstance(value, Sealed) else data


def sealed(data: bytes) -> bytes:
    """Add a last line to the bytes of a record: the hash of these bytes."""
    body = data.removesuffix(_END)
    return body + _SEAL + content_hash(body).encode() + b'"' + _END


def _unsealed(data: bytes) -> bytes:
    """Return the bytes of a record without its last line.

    Raises:
        CorruptDatasetError: the last line is not the hash of the bytes before it.
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
    except (CorruptDatasetError, UsageError) as error:  # the seal, or a validator of a value
        reason = str(error)
    refuse_newer_json(data, "format", FORMAT, what=where)
    kind = re.sub(r"(?<!^)(?=[A-Z])", " ", model.__name__).lower()  # PartRecord -> part record
    raise CorruptDatasetError(f"{where} is no valid {kind}: {reason}")
