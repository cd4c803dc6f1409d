"""This host's side of a run on several: the means to work for it, for as long as it lives."""

import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings
from prefect.states import Crashed

from streaming_ext.dataset.schema import from_json
from streaming_ext.errors import (
    ConfigMismatchError,
    NotADatasetError,
    ScratchError,
    ShardmillError,
    StoppedError,
    StorageError,
)
from tasks.core.cluster.heartbeat import BEAT_SECONDS, Pulse
from tasks.core.cluster.messages import ParentSign, SharedPlan, flow_run_of, parent_path
from tasks.core.cluster.shared_plan import partition_plan, read_plan
from tasks.core.config import ShardConfig
from tasks.core.planning.plan import scratch_base
from tasks.core.reporting.progress import RunProgress
from tasks.core.storage import Storage
from tasks.core.storage.scratch import own_folder
from tasks.core.workers.tokenize_part import PrepareJob
from tasks.running.prefect_api import asked_once
from tasks.running.run import Run
from tasks.running.worker_pools import worker_pools

LOOKS_A_QUESTION = 3  # at the storage, to one to Prefect's server: that one has many to answer


class CannotTakePartError(ShardmillError):
    """This host cannot work for a run, and says why; another one may.

    Attributes:
        transient: this host may be able to a moment later.
        worker: address of the process in its Dask cluster, where it is of one.
    """

    worker: str | None = None


UNFIT = (StorageError, NotADatasetError, ConfigMismatchError)  # what cannot begin meets these


@contextmanager
def refusing(*kinds: type[ShardmillError]) -> Iterator[None]:
    """Take what goes wrong in the block for a fault of this host, not of the run.

    Args:
        kinds: of errors.

    Raises:
        CannotTakePartError: in place of such an error; it names the host.
    """
    try:
        yield
    except kinds as error:
        refusal = CannotTakePartError(f"host {platform.node()}: {error}")
        refusal.transient = error.transient
        raise refusal from error


class Guest:
    """A process on any host that works for a run whose parent plans and publishes elsewhere.

    Attributes:
        stopped: why the work was stopped from outside, if it was.
    """

    def __init__(self, storage: Storage, run: str, name: str) -> None:
        """Say for whom.

        Args:
            storage: of the dataset.
            run: id of the parent's flow run.
            name: of this guest, for its scratch folder.
        """
        self.storage = storage
        self.run = run
        self.name = f"{run}-{name}"  # ids of runs of one minute begin alike
        self.progress = RunProgress()
        self.stopped: str | None = None
        self._looks = 0

    def parts_of(self, shared: SharedPlan) -> Sequence[int]:
        """The parts that may be this guest's to do."""
        return [part for partition in shared.partitions for part in partition]

    def why_superseded(self, sign: ParentSign) -> str | None:
        """Why the parent counts on this guest no more, though it lives."""
        return None

    def why_orphaned(self) -> str | None:
        """Why nobody on this host would end this guest any more."""
        return None

    def join(self, pulse: Pulse) -> SharedPlan:
        """Look whether the run goes on, and whether this host can work for it.

        Raises:
            StoppedError: the parent run is over.
            CannotTakePartError: this host does not reach the output, or has other packages.
        """
        self.stopped = self.why_orphaned() or self._told_by_prefect()
        if self.stopped is None:
            with refusing(*UNFIT):
                shared = read_plan(self.storage, self.run)
            self.stopped = self._told_by_storage(pulse)
        if self.stopped is not None:
            raise StoppedError(self.stopped)
        return shared

    @contextmanager
    def means(
        self,
        *,
        resumed: bool = False,
        workers: int | None = None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> Iterator[Run]:
        """All that working for the run takes, on this host, until the block ends.

        Args:
            resumed: parts may be recorded already; these are left out.
            workers: in place of what the configuration says.
            on_stop: called from a thread when the parent stops this guest, or is gone.

        Raises:
            StoppedError: the parent run is over.
            CannotTakePartError: this host does not reach the output, has no room or other packages.
            TokenizerError: the output does not hold what it should.
        """
        pulse = Pulse()
        shared = self.join(pulse)
        config = ShardConfig.model_validate(shared.config)
        if workers is not None:
            config = config.model_copy(update={"workers": workers})
        with ExitStack() as stack:
            with refusing(*UNFIT):
                scratch = stack.enter_context(
                    own_folder(scratch_base(config, self.storage), self.name)
                )
                plan = partition_plan(
                    shared, config, self.storage, self.parts_of(shared), scratch, resumed=resumed
                )
            with worker_pools(config, max(len(plan.todo), 1)) as (pool, movers):

                def stop(reason: str) -> None:
                    self.stopped = reason
                    pool.stop()
                    movers.stop()
                    on_stop()

                with self._watching_parent(pulse, stop):
                    pool.run_in_each(PrepareJob.of(plan.tokenizer_folder, config.engine))
                    with refusing(ScratchError):  # another host may have room
                        yield Run(plan, self.storage, pool, self.progress, movers)

    @contextmanager
    def _watching_parent(self, pulse: Pulse, stop: Callable[[str], None]) -> Iterator[None]:
        """Call `stop` with the reason when the parent run is over or counts on this no more."""
        ended = threading.Event()
        # The thread asks the API that its starter asks, which a context may have set; of that
        # context no more: the client in it lives as long as one task.
        api = get_current_settings().api.url

        def watch() -> None:
            reason = None
            try:
                with temporary_settings({} if api is None else {PREFECT_API_URL: api}):
                    while reason is None and not ended.wait(BEAT_SECONDS):
                        reason = self._reason_to_stop(pulse)
            finally:
                if not ended.is_set():  # nobody works unwatched
                    stop(reason or "the watch over the parent run failed")

        thread = threading.Thread(target=watch, name="shardmill-parent-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(BEAT_SECONDS)

    def _reason_to_stop(self, pulse: Pulse) -> str | None:
        reason = self.why_orphaned() or self._told_by_storage(pulse)
        if reason is None and self._looks % LOOKS_A_QUESTION == 0:
            reason = self._told_by_prefect()
        self._looks += 1
        return reason

    def _told_by_prefect(self) -> str | None:
        # Of a parent run that a worker started it knows at once how it ended.
        with asked_once(), get_client(sync_client=True) as client:
            try:
                state = client.read_flow_run(flow_run_of(self.run)).state
            except ObjectNotFound:
                return "the parent run was deleted"
            if state is not None and (state.is_final() or state.is_cancelling()):
                return f"the parent run is {state.name}"
        return None

    def _told_by_storage(self, pulse: Pulse) -> str | None:
        path = parent_path(self.run)
        began = time.monotonic()
        try:
            content = self.storage.read(path)
        except FileNotFoundError:
            return "the parent run is over"
        except StorageError:
            pulse.listen_anew()
            return None  # nothing is known; the work itself meets what is wrong with the storage
        if time.monotonic() - began > BEAT_SECONDS:
            pulse.listen_anew()  # what kept this waiting keeps the parent run from giving signs
        sign = from_json(ParentSign, content, where=f"{self.storage}/{path}")
        if sign.stopped:
            return "the parent run was stopped"
        if (reason := self.why_superseded(sign)) is not None:
            return reason
        if pulse.silent_for(content) > pulse.limit:
            self._record_death(f"No sign of life of its process for {pulse.limit:.0f} s.")
            return f"the parent run is gone: no sign of life for {pulse.limit:.0f} s"
        return None

    def _record_death(self, message: str) -> None:
        """Have Prefect know that the parent run is gone: other guests that begin later ask it."""
        run = flow_run_of(self.run)
        with asked_once(), suppress(ObjectNotFound), get_client(sync_client=True) as client:
            state = client.read_flow_run(run).state
            if state is not None and not state.is_final():
                client.set_flow_run_state(run, Crashed(message=message), force=True)
