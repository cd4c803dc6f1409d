"""What records and manifests are made of: strict values, files with size and hash, their JSON."""

import json
import re
from typing import Annotated, Final, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.errors import CorruptDatasetError
from streaming_ext.format_version import FormatVersion, refuse_newer
from streaming_ext.plain_faults import plain_faults

FORMAT: Final = FormatVersion(1, 1)  # the newest that is read here

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
    return (text + "\n").encode()


def from_json(model: type[Model], data: bytes, *, where: str) -> Model:
    """Read a record or manifest.

    Raises:
        NewerVersionError: a newer shardmill made it; `where` names the file.
        CorruptDatasetError: it is damaged.
    """
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        reason = plain_faults(error)
    except CorruptDatasetError as error:  # raised in our own words while a shard is looked at
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
