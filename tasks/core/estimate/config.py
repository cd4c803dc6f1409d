"""Options of `shardmill plan` and `bench`: the run, its machines, and the sample."""

import re
from typing import Annotated, ClassVar

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    ValidationInfo,
    field_validator,
)

from streaming_ext.text.options import (
    DocumentOptions,
    HubOptions,
    Options,
    SourceOptions,
    TokenizerName,
    TokenizerOptions,
)
from tasks.core.config import ShardConfig
from tasks.core.options import Execution

MOST_PARTS = 10_000_000  # per estimate
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(bit|bps|b|)(?:/s)?", re.IGNORECASE)


def parse_rate(text: object) -> object:
    """Parse a rate such as `1Gbit`, `10gbit/s` or `500MB` to bytes per second; k is 1000.

    Raises:
        ValueError: the text is not a rate.
    """
    if not isinstance(text, str):
        return text
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a rate such as 1Gbit or 500MB")
    number, factor, kind = match.groups()
    return float(number) * _FACTORS[factor.lower()] / (8 if kind.lower() in {"bit", "bps"} else 1)


Rate = Annotated[float, BeforeValidator(parse_rate), Field(gt=0)]


class Machines(Options):
    """The machines of a planned run; `workers` is per machine."""

    heading: ClassVar[str] = "Machines"

    hosts: Annotated[int, Field(gt=0, le=10_000)] = 1
    """Number of hosts that divide the work."""
    link: Rate | None = None
    """Network link of each host, as 1Gbit or 500MB; default: 1Gbit if used."""
    disk: Rate | None = None
    """Write rate of each host's disk; default: as measured here."""
    remote_sources: bool | None = None
    """True if the link carries the sources; default: as SOURCES say."""


class Sampling(Options):
    """The size of the sample that an estimate reads."""

    heading: ClassVar[str] = "Sample"

    sample_size: Annotated[ByteSize, Field(ge=2**16)] = ByteSize(128 * 2**20)
    """Bytes of text to sample in total."""
    sample_files: Annotated[int, Field(gt=0, le=4096)] = 16
    """Number of files to sample."""
    sample_seed: Annotated[int, Field(ge=0)] = 0
    """Seed for the choice of files and rows."""


class BenchConfig(
    Execution, Sampling, DocumentOptions, HubOptions, TokenizerOptions, SourceOptions, TokenizerName
):
    """A tokenizer, and text files to measure it on."""

    arguments: ClassVar[tuple[str, ...]] = ("tokenizer", "sources")

    @property
    def estimated(self) -> "EstimateConfig":
        """The run that the bench measures but does not scale."""
        return EstimateConfig.model_validate(self.model_dump(exclude_unset=True))


class EstimateConfig(Sampling, Machines, ShardConfig):
    """A planned run, on a number of machines like this one."""

    output: Annotated[str, Field(min_length=1)] = "."
    """Planned location of the dataset; uploads use the link."""
    total_size: Annotated[ByteSize | None, Field(gt=0)] = None
    """Plan for source files of this total size; SOURCES are an example of them."""
    total_files: Annotated[int | None, Field(gt=0, le=MOST_PARTS)] = None
    """Number of these files; default: each as large as those of SOURCES."""

    @field_validator("total_files")
    @classmethod
    def _with_total_size(cls, files: int | None, info: ValidationInfo) -> int | None:
        if files is not None and info.data.get("total_size", 0) is None:
            raise ValueError("goes with --total-size")
        return files
