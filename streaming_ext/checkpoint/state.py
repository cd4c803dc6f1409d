"""Where training stands in its data, as a small dictionary that says what it belongs to."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from streaming_ext.checkpoint.consistent import contradiction_in
from streaming_ext.dataset.hashing import content_hash
from streaming_ext.errors import ConfigMismatchError, UsageError
from streaming_ext.format_version import FormatVersion, refuse_newer
from streaming_ext.sampler.schedule import Schedule

STATE_VERSION: Final = FormatVersion(1, 4)  # the newest that is read here
# Settings of a mixture that changes: where they differ, an epoch has other sequences.
MIXING: Final = ("proportions", "max_repeats", "at_max_repeats")
_WHOLE_STEPS: Final = ("per_stream", "stratified")  # what is of one stream goes with global_batch
_NOTHING: Final = ("missed", 0)
_OVERRIDE = "Use the old values, or pass load_state_dict(..., allow_changes=[...]) naming them."


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamState:
    """One stream of the data.

    Attributes:
        fingerprint: content hash of the stream's index: two datasets share it only if every
            sample is the same. It leaves out where the dataset lies.
        choose: sequences an epoch.
        before: sequences drawn before this epoch.
        drawn: sequences drawn by now.
        missed: of `before`, what never came; see `Cursor`.
    """

    fingerprint: str
    choose: int
    before: int
    drawn: int
    missed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As plain values; what is not needed is not named, as in earlier versions."""
        return {name: value for name, value in asdict(self).items() if (name, value) != _NOTHING}


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderState:
    """The state of a data loader between two steps.

    Attributes:
        epoch: number of the epoch, from 0.
        sequences: of this epoch that training received, over all ranks.
        order: every setting that decides which sequence a step holds.
        streams: one a stream, in their order.
        tokens_before: of training before this epoch, where the streams do not say it: they were
            others once.
        grown: of a dataset that was extended during this pass: the number of the pass, and for each
            time the fingerprint of the generation that it stood in, with how many sequences of the
            pass it had seen there.
        past: of an epoch in which settings were changed: the steps before the last change of
            sizes, [steps, sequences a step, tokens a sequence] one behind the other, and how many
            of its first places came in an order that the settings here do not tell.
        check: hash of the counts as they were saved with `grown`, which nothing else can confirm.
    """

    epoch: int
    sequences: int
    order: Mapping[str, Any]
    streams: tuple[StreamState, ...]
    tokens_before: int | None = None
    grown: Mapping[str, Any] | None = None
    past: Mapping[str, Any] | None = None
    check: str | None = None

    def to_dict(self, counts: Mapping[str, Any] = {}) -> dict[str, Any]:
        """As plain values for JSON, torch.save and the like.

        Args:
            counts: what training received, beside the number of sequences.
        """
        return (
            {
                "version": self._version(counts),
                "epoch": self.epoch,
                "sample_in_epoch": self.sequences,
                "order": dict(self.order),
                "streams": [stream.to_dict() for stream in self.streams],
            }
            | ({} if self.tokens_before is None else {"tokens_before": self.tokens_before})
            | ({} if self.grown is None else {"grown": dict(self.grown), "check": self._hash()})
            | ({} if self.past is None else {"past": dict(self.past)})
            | dict(counts)
        )

    def _hash(self) -> str:
        counts = [self.epoch, self.sequences, [each.to_dict() for each in self.streams], self.grown]
        return content_hash(json.dumps(counts, sort_keys=True).encode())

    def require_unchanged(self) -> None:
        """Refuse counts that are not those which were saved.

        Raises:
            ConfigMismatchError: they are not.
        """
        if self.check is not None and self.check != self._hash():
            raise ConfigMismatchError(
                "The state is damaged: its counts are not those that were saved. Resume from "
                "another checkpoint."
            )

    def _version(self, counts: Mapping[str, Any]) -> int | str:
        """The lowest one that has all of this."""
        if self.past:
            return str(STATE_VERSION)
        if any(stream.missed for stream in self.streams):
            return "1.3"
        return "1.2" if self.grown else "1.1" if counts else 1

    def tokens(self, length: int) -> int:
        """Tokens of training before this epoch, for sequences of a length."""
        if self.tokens_before is not None:
            return self.tokens_before
        return sum(stream.before for stream in self.streams) * length

    @property
    def longest(self) -> int:
        """Tokens of its sequences, of the longest where their length changes."""
        return Schedule.whole(self.order["sequence_length"], name="sequence_length").largest

    @property
    def numbering(self) -> tuple[Any, ...]:
        """What decides which sequence has which number in a pass over a stream."""
        names = ("exclude", "packing", "document_multiple")
        return (*(self.order.get(name) for name in names), self.longest)

    def deals_out_as(self, other: "LoaderState") -> bool:
        """Whether each place of an epoch is the same draw of the same stream."""
        return self._dealt() == other._dealt()

    def _dealt(self) -> list[Any]:
        names = [*MIXING]
        if len(self.streams) > 1:
            names.append("batching_method")
            if self.order.get("batching_method") in _WHOLE_STEPS:
                names.append("global_batch")
        told = [self.order.get(name) for name in names]
        amounts = [(stream.fingerprint, stream.choose) for stream in self.streams]
        return [self.numbering, told, amounts]

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "LoaderState":
        """Read a state; the mapping is left as it is.

        Raises:
            NewerVersionError: a newer shardmill saved it.
            ConfigMismatchError: it is damaged, or of another kind of dataset.
        """
        version = state.get("version")
        refuse_newer(version, STATE_VERSION, what="The state")
        if FormatVersion.read(version) is None:
            raise ConfigMismatchError(
                f"The state has version {version!r}, this loader reads {STATE_VERSION}. "
                + (
                    "It looks like one of the stock StreamingDataset: its order is another one, "
                    "training can only start a new epoch."
                    if version is None and "sample_in_epoch" in state
                    else "Resume with the version of shardmill that wrote it."
                )
            )
        try:
            result = cls(
                epoch=state["epoch"],
                sequences=state["sample_in_epoch"],
                order=dict(state["order"]),
                streams=tuple(StreamState(**stream) for stream in state["streams"]),
                tokens_before=state.get("tokens_before"),
                grown=state.get("grown"),
                past=state.get("past"),
                check=state.get("check"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigMismatchError(f"The state is damaged: {error!r}.") from error
        if contradiction := contradiction_in(result):
            raise ConfigMismatchError(
                f"The state is damaged: {contradiction}. Resume from another checkpoint."
            )
        return result

    def require_same(self, now: "LoaderState", *, allow_changes: Collection[str]) -> None:
        """Refuse to go on in another order.

        Args:
            now: the state of the loader that is to go on.
            allow_changes: names of fields that may differ.

        Raises:
            ConfigMismatchError: naming every other field that differs.
        """
        known = {*self.order, *now.order, "streams"}
        if unknown := sorted(set(allow_changes) - known):
            raise UsageError(
                f"`allow_changes` names {', '.join(unknown)}; "
                f"it may name {', '.join(sorted(known))}."
            )
        lines = [
            f"{name}: the state has {self.order.get(name)!r}, this loader {now.order.get(name)!r}"
            for name in sorted({*self.order, *now.order})
            if self.order.get(name) != now.order.get(name) and name not in allow_changes
        ]
        if "streams" not in allow_changes:
            ours = [(stream.fingerprint, stream.choose) for stream in self.streams]
            theirs = [(stream.fingerprint, stream.choose) for stream in now.streams]
            # Another size of an epoch is no other data: each stream may give another amount of it.
            parts = slice(1) if "epoch_size" in allow_changes else slice(2)
            if [each[parts] for each in ours] != [each[parts] for each in theirs]:
                lines.append(
                    f"streams: the state has (fingerprint, sequences an epoch) {ours}, "
                    f"this loader {theirs}"
                )
        if lines:
            raise ConfigMismatchError(
                "The state was saved with other settings:\n  "
                + "\n  ".join(lines)
                + f"\n{_OVERRIDE}"
            )
