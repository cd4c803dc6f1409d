"""One partition as its parent run sees it: what it told, whether it lives, what is left of it."""

from collections.abc import Iterator, Sequence
from uuid import UUID

from prefect.client.schemas.objects import State

from streaming_ext.text.parts.part import Part
from tasks.core.cluster.heartbeat import Pulse
from tasks.core.cluster.messages import PartitionSign
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.hosts.partition_guest import REFUSED

START_SECONDS = 120.0  # from the moment that a worker takes a run to its first sign of life
ATTEMPTS_WITHOUT_GAIN = 3


class SentPartition:
    """A partition of a run. It is sent as attempt 1, 2, ..., until one attempt says that it ended.

    Attributes:
        number: of the partition.
        parts: that it is to do.
        attempt: that is counted on now; 0 before the first.
        flow_run: of that attempt, once Prefect has it.
        ended: nothing more is to be done.
        refused: why a host did not take that attempt, and which.
    """

    def __init__(self, number: int, parts: Sequence[int]) -> None:
        self.number = number
        self.parts = tuple(parts)
        self.attempt = 0
        self.flow_run: UUID | None = None
        self.ended = False
        self.refused: str | None = None
        self.sign: PartitionSign | None = None
        self._known: set[int] = set()
        self._shown: dict[int, str] = {}  # part -> step
        self._known_when_sent = 0
        self._without_gain = 0
        self._pulse = Pulse()

    @property
    def left(self) -> list[int]:
        """Parts of which nothing was told yet."""
        return [part for part in self.parts if part not in self._known]

    def begin_attempt(self, now: float) -> None:
        """Count on a new attempt from now on."""
        self.attempt += 1
        self.refused = None
        self.flow_run = None
        self.sign = None
        self._known_when_sent = len(self._known)
        self.listen_anew(now)

    def hear(
        self, content: bytes | None, sign: PartitionSign | None, now: float
    ) -> Iterator[PartTimes | FailedFile]:
        """Take in what the attempt tells of itself; yields what is new."""
        self._pulse.silent_for(content, now)
        if sign is None:
            return
        self.sign = sign
        results: tuple[PartTimes | FailedFile, ...] = (*sign.done, *sign.failed)
        for result in results:
            if result.part not in self._known:
                self._known.add(result.part)
                yield result

    def show(self, parts: Sequence[Part], progress: RunProgress) -> None:
        """Have people see what the host has in hand."""
        files = () if self.ended or self.sign is None else self.sign.in_hand
        files = tuple(file for file in files if file.part not in self._known)
        for part in self._shown.keys() - {file.part for file in files}:
            del self._shown[part]
            if part not in self._known:
                progress.give_up(part)
        for file in files:
            if self._shown.get(file.part) != file.step:
                self._shown[file.part] = file.step
                progress.step(file.part, parts[file.part].source, file.step, self.host)
            progress.update(
                file.part,
                source_bytes=file.source_bytes,
                text_bytes=file.text_bytes,
                tokens=file.tokens,
            )

    @property
    def host(self) -> str:
        """That works on it now, where one is known."""
        return "" if self.sign is None else self.sign.host

    def why_lost(self, state: State | None, now: float) -> str | None:
        """Why the attempt will not end by itself; None while it may.

        Args:
            state: of its flow run; None where Prefect does not answer.
            now: seconds on a monotonic clock.
        """
        if state is not None and state.is_final():
            if state.name == REFUSED:
                self.refused = state.message
            return f"its run ended as {state.name}: {state.message or 'nothing more is known'}"
        if self.sign is None and (state is None or state.is_scheduled()):
            self.listen_anew(now)  # it waits for a worker: no time of its own has begun
            return None
        silent = self._pulse.silent_for(self._pulse.last, now)
        if self.sign is None:
            late = silent > START_SECONDS
            return f"a worker took it, but nothing began in {START_SECONDS:.0f} s" if late else None
        if self.sign.stopped:
            return f"it was stopped on host {self.sign.host}"
        if silent > self._pulse.limit:
            return f"no sign of life from host {self.sign.host} for {silent:.0f} s"
        return None

    def listen_anew(self, now: float) -> None:
        """Forget how long nothing was heard: nothing could be."""
        self._pulse = Pulse(now)

    def may_be_sent_again(self) -> bool:
        """Whether another attempt is worth it: the last ones got something done."""
        if self.refused is not None:  # no attempt at the work
            return True
        gained = len(self._known) > self._known_when_sent
        self._without_gain = 0 if gained else self._without_gain + 1
        return self._without_gain < ATTEMPTS_WITHOUT_GAIN
