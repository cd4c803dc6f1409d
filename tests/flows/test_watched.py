"""A run that a command watches."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from flows.watched import WatchedRun, watch, watched
from streaming_ext.base.errors import UsageError
from streaming_ext.store import holding, open_storage
from tasks.core.shard.plan import plan_shard
from tests.tasks.core.build_dataset import config_of
from tests.tasks.core.doubles import write_source


def test_watches_nest_and_end_on_errors() -> None:
    with watch() as outer:
        with pytest.raises(RuntimeError), watch() as inner:
            assert watched() is inner
            raise RuntimeError
        assert watched() is outer
        context = copy_context()  # as a thread of Prefect has it
    assert watched() is not watched() is not outer
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(context.run, watched).result() is outer


def test_a_flow_goes_on_with_what_its_command_holds(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(holding, "_LOCK_WAIT_SECONDS", 0.2)
    write_source(tmp_path / "sources" / "000.parquet", ["a document"])
    config = config_of(tmp_path / "sources", tmp_path / "dataset")
    run = WatchedRun()
    with run.holding(plan_shard, config) as (planned, output):
        build = run.begin()
        assert build.todo == planned.todo == (0,)
        with run.holding(plan_shard, config) as within:
            assert within == (build, output)
            assert run.begin() is build
        with pytest.raises(UsageError, match="Another run"), open_storage(str(output)).exclusive():
            pytest.fail("the command holds it")
        pools = run.pools
        assert pools is not None
        assert not pools[0].stopped
    assert pools[0].stopped
    with open_storage(str(output)).exclusive():
        assert run.held is run.pools is None
