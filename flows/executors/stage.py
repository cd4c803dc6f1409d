"""A stage of a run: a fan-out over parts with a barrier behind it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prefect.futures import PrefectFuture

from tasks.core.planning.run_plan import StageName
from tasks.download import download
from tasks.export import export
from tasks.gather import gather
from tasks.move import copy, merge
from tasks.subset import subset
from tasks.tokenize import tokenize
from tasks.write import write


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One task of a stage.

    Attributes:
        name: as people see it.
        submit: begins it; it gets the run, the part and what the step before it made.
        local: whether it has work where the part's source lies on this host already.
    """

    name: str
    submit: Callable[..., PrefectFuture[Any]]
    local: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Each part goes through all steps; what comes behind begins when every part is through.

    Attributes:
        name: what the run is doing meanwhile.
        steps: in their order.
        behind: what the run is doing once all parts are through.
    """

    name: str
    steps: tuple[Step, ...]
    behind: str


_READ = tokenize.with_options(name="read", task_run_name="read {part}")  # ids as they are
_FROM_SOURCES = (
    Step(name="download", submit=download.submit, local=False),
    Step(name="tokenize", submit=tokenize.submit),
    Step(name="write", submit=write.submit),
)
STAGES: dict[StageName, Stage] = {
    "shard": Stage(name="sharding", steps=_FROM_SOURCES, behind="publishing"),
    "import": Stage(
        name="importing",
        steps=(
            Step(name="download", submit=download.submit, local=False),
            Step(name="read", submit=_READ.submit),
            Step(name="write", submit=write.submit),
        ),
        behind="publishing",
    ),
    "scatter": Stage(
        name="stage 1 of 2, tokenizing and sorting",
        steps=_FROM_SOURCES,
        behind="arranging the second stage",
    ),
    "gather": Stage(
        name="stage 2 of 2, merging",
        steps=(
            Step(name="gather", submit=gather.submit),
            Step(name="write", submit=write.submit),
        ),
        behind="publishing",
    ),
    "copy": Stage(
        name="copying",
        steps=(Step(name="copy", submit=copy.submit),),
        behind="publishing",
    ),
    "merge": Stage(
        name="merging",
        steps=(Step(name="merge", submit=merge.submit),),
        behind="publishing",
    ),
    "subset": Stage(
        name="taking documents",
        steps=(Step(name="subset", submit=subset.submit),),
        behind="publishing",
    ),
    "export": Stage(
        name="exporting",
        steps=(Step(name="export", submit=export.submit),),
        behind="publishing",
    ),
}
