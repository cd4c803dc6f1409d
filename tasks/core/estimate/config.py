"""Options of `shardmill plan`: those of a run, its machines, and the sample."""

import re
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, ByteSize, Field, ValidationInfo, field_validator

from streaming_ext.text.options import Options
from tasks.core.config import ShardConfig

MOST_PARTS = 10_000_000  # that `plan` takes
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(bit|bps|b|)(?:/s)?", re.IGNORECASE)


def parse_rate(text: object) -> object:
    """Bytes a second from `1Gbit`, `10gbit/s` or `500MB`; powers of 1000, as links are sold.

    Raises:
        ValueError: it is no such text.
    """
    if not isinstance(text, str):
        return text
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a rate such as 1Gbit or 500MB")
    number, unit, kind = match.groups()
    return float(number) * _UNITS[unit.lower()] / (8 if kind.lower() in {"bit", "bps"} else 1)


Rate = Annotated[float, BeforeValidator(parse_rate), Field(gt=0)]


class Machines(Options):
    """Machines of a planned run; `workers` counts those of each."""

    heading: ClassVar[str] = "Machines"

    hosts: Annotated[int, Field(gt=0, le=10_000, description="Machines that share the work.")] = 1
    link: Annotated[
        Rate | None,
        Field(description="Network link of each host, as 1Gbit or 500MB; default: 1Gbit if used."),
    ] = None
    disk: Annotated[
        Rate | None,
        Field(description="Write rate of each host's disk; default: as measured here."),
    ] = None
    remote_sources: Annotated[
        bool | None,
        Field(description="Whether the link carries the sources; default: as for SOURCE."),
    ] = None


class Sampling(Options):
    """How much of the sources is read for an estimate."""

    heading: ClassVar[str] = "Sample"

    sample_size: Annotated[
        ByteSize, Field(ge=2**16, description="Bytes of text to sample in total.")
    ] = ByteSize(128 * 2**20)
    sample_files: Annotated[int, Field(gt=0, le=4096, description="Number of files to sample.")] = (
        16
    )
    sample_seed: Annotated[
        int, Field(ge=0, description="Seed for the choice of files and rows.")
    ] = 0
    total_size: Annotated[
        ByteSize | None,
        Field(
            gt=0,
            description="Plan for source files of this total size, with SOURCE as an example of "
            "them.",
        ),
    ] = None
    total_files: Annotated[
        int | None,
        Field(
            gt=0,
            le=MOST_PARTS,
            description="Number of these files; default: each as large as those of SOURCE.",
        ),
    ] = None

    @field_validator("total_files")
    @classmethod
    def _some_bytes_a_file(cls, files: int | None, info: ValidationInfo) -> int | None:
        if files is None or "total_size" not in info.data:
            return files
        size = info.data["total_size"]
        if size is None:
            raise ValueError("goes with --total-size")
        return files


class EstimateConfig(Sampling, Machines, ShardConfig):
    """A run that may be made, on so many machines like this one."""

    output: Annotated[
        str,
        Field(
            min_length=1,
            description="Planned location of the dataset; uploads to object storage use the link.",
        ),
    ] = "."
