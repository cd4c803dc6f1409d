"""What a run needs before its first file: the output held, workers that are ready, the plan."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flows.executors import Executor, open_executor
from tasks.core.config import ShardConfig
from tasks.core.planning.look import look, take_up
from tasks.core.planning.plan import remove_scratch
from tasks.core.planning.run_plan import RunPlan
from tasks.core.planning.sources import check_sources
from tasks.core.reporting.progress import RunProgress
from tasks.core.storage import Storage, open_storage


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A run that may begin; where its dataset is whole already, nobody is ready for work.

    Attributes:
        executor: none where nothing is left to do.
    """

    plan: RunPlan
    storage: Storage
    executor: Executor | None


def _most_at_once(plan: RunPlan) -> int:
    """Parts that may be in hand at once; with a shuffle the second stage may have more of them."""
    return len(plan.parts) if plan.is_one_stage else plan.config.workers


@contextmanager
def preparing(config: ShardConfig, progress: RunProgress) -> Iterator[Prepared]:
    """Look at what is to be done and have workers ready for it; all of it ends with the block."""
    progress.enter("looking at the sources")
    sources = check_sources(config)
    storage = open_storage(config.output)
    progress.enter("preparing the tokenizer")
    found = look(config, storage, sources)  # what is refused stays as it is
    if found.plan.published:
        storage.tidy(found.plan.scratch)
        yield Prepared(plan=found.plan, storage=storage, executor=None)
        return
    storage.create()
    with storage.exclusive(progress.enter) as lock:
        progress.enter("looking at what is there")
        with open_executor(
            config,
            files=_most_at_once(found.plan),
            inherited=[] if lock is None else [lock],
        ) as executor:
            plan = take_up(found, storage, sources, progress.enter)
            if plan.published:
                yield Prepared(plan=plan, storage=storage, executor=None)
            else:
                executor.prepare(plan, storage)
                yield Prepared(plan=plan, storage=storage, executor=executor)
        storage.close()  # the executor has told other hosts through it that the run is over
        remove_scratch(plan)
