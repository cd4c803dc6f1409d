"""The state of training: its position in the data, and the settings that decide the order."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.base.plain_faults import plain_faults
from streaming_ext.format.schema import content_hash, refuse_newer
from streaming_ext.order.steps import StepSizes

VERSION: Final = 1
CHECKSUM: Final = "checksum"
# Settings of a mixture that changes: if they differ, an epoch has other sequences.
MIXING: Final = ("proportions", "max_repeats")
# If these differ, the sequences of an epoch are the same in the same order.
_NO_ORDER: Final = {
    "global_batch",
    "sequence_length",
    "epoch_size",  # if it changes the streams' amounts, those are compared
    "domain_by",
    "drop_last",
    "max_repeated_ngram",
}
_WHOLE_STEPS: Final = ("per_stream", "stratified")  # they allocate streams by global batches
_OVERRIDE = "Use the old values, or pass load_state_dict(..., allow_changes=[...]) naming them."

Count = Annotated[int, Strict(), Field(ge=0, lt=1 << 60)]


class _Saved(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class StreamState(_Saved):
    """One stream of the data.

    Attributes:
        fingerprint: the content hash of the stream's index, the same for two datasets only if
            every sample is the same. It leaves out the location of the dataset. In a stream of
            chosen documents, the hash of the choice follows it.
        choose: sequences per epoch.
        before: sequences drawn before this epoch.
        drawn: sequences drawn by now.
        missed: the draws in `before` that never came; see `Cursor`.
        key: see `Cursor`; None for its place among the streams.
    """

    fingerprint: str
    choose: Count
    before: Count
    drawn: Count
    missed: Count = 0
    key: Count | None = None


class Growth(_Saved):
    """A pass over a dataset that was extended during it.

    Attributes:
        number: the number of the pass.
        steps: the fingerprint of the generation before each extension, and the number of sequences
            of the pass that training had received.
    """

    number: Count = Field(alias="pass")
    steps: tuple[tuple[str, Count], ...]


class PastSizes(_Saved):
    """The sizes of an epoch's first steps, if they were changed during the epoch.

    Attributes:
        global_batch, sequence_length: see `StepSizes`.
        until: the position after these steps.
    """

    global_batch: str
    sequence_length: str
    until: Count

    @property
    def sizes(self) -> StepSizes:
        """The sizes of these steps."""
        return StepSizes.named(self.model_dump())


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A position between two steps.

    Attributes:
        epoch: the number of the epoch, from 0.
        position: positions of the epoch before the cursor.
        before: draws of each stream before this epoch.
        missed: draws in `before` that never came, since passes before an extension were shorter.
        tokens: tokens of training before this epoch, over all streams that training ever had.
        grown: the growth of a dataset that was extended during this pass.
        past: the sizes of the epoch's first steps, if they were changed during it.
        keys: the number of each stream in the keys of its passes: its place when it came, whatever
            its place is now; empty if no stream moved.
    """

    epoch: int
    position: int
    before: tuple[int, ...]
    missed: tuple[int, ...]
    tokens: int = 0
    grown: Growth | None = None
    past: PastSizes | None = None
    keys: tuple[int, ...] = ()


class LoaderState(_Saved, extra="ignore"):  # a saved state also holds counts of the loader
    """The state of a data loader between two steps.

    Attributes:
        epoch: the number of the epoch, from 0.
        sequences: sequences of this epoch that training received, over all ranks.
        order: every setting that decides which sequence a step holds.
        streams: the state of each stream, in their order.
        tokens_before: tokens of training before this epoch, if the counts of the streams do not
            give them because the streams changed.
        grown: the growth of a dataset that was extended during this pass.
        past: the sizes of the epoch's first steps, if they were changed during it.
    """

    epoch: Count
    sequences: Count = Field(alias="sample_in_epoch")
    order: dict[str, Any]
    streams: Annotated[tuple[StreamState, ...], Field(min_length=1)]
    tokens_before: Count | None = None
    grown: Growth | None = None
    past: PastSizes | None = None

    def to_dict(self, counts: Mapping[str, Any] = {}) -> dict[str, Any]:
        """Convert to plain values for JSON, torch.save and the like; defaults are left out.

        Args:
            counts: counts of what training received, besides the number of sequences.
        """
        own = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return sealed({"version": VERSION, **own, **counts})

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "LoaderState":
        """Read a state without changing the mapping.

        Raises:
            NewerVersionError: a newer shardmill saved it.
            ConfigMismatchError: the state is damaged, or of another kind of dataset.
        """
        if not isinstance(state, Mapping):
            raise ConfigMismatchError(
                f"The state is of type {type(state).__name__}; expected what state_dict() returned."
            )
        version = state.get("version")
        refuse_newer(version, VERSION, what="The state")
        if version != VERSION:
            raise ConfigMismatchError(
                f"The state has version {version!r}, this loader reads {VERSION}. "
                + (
                    "It looks like one of the stock StreamingDataset: its order is another one, "
                    "training can only start a new epoch."
                    if version is None and "sample_in_epoch" in state
                    else "Resume with the version of shardmill that wrote it."
                )
            )
        try:
            result = cls.model_validate(dict(state))
            _ = result.longest
            why = "" if sealed(state)[CHECKSUM] == state[CHECKSUM] else "it is not what was saved"
        except (KeyError, TypeError, ValueError, UsageError) as error:
            why = plain_faults(error) if isinstance(error, ValidationError) else repr(error)
        if why:
            raise ConfigMismatchError(
                f"The state is damaged: {why}. Resume from another checkpoint."
            )
        return result

    @property
    def tokens(self) -> int:
        """Tokens of training before this epoch."""
        if self.tokens_before is not None:
            return self.tokens_before
        return sum(stream.before for stream in self.streams) * self.longest

    @property
    def inside(self) -> bool:
        """True within an epoch, False between two."""
        return self.sequences not in (0, self.order["epoch_size"])

    @property
    def sizes(self) -> StepSizes:
        """The sizes of the steps."""
        return StepSizes.named(self.order)

    @property
    def longest(self) -> int:
        """Tokens per sequence; if the length changes, those of the longest."""
        return self.sizes.longest

    @property
    def numbering(self) -> tuple[Any, ...]:
        """The settings that decide which sequence has which number in a pass over a stream."""
        names = ("exclude", "packing", "document_multiple")
        return (*map(self.order.get, names), self.longest)

    @property
    def amounts(self) -> list[tuple[str, int]]:
        """Fingerprint and sequences per epoch of each stream."""
        return [(stream.fingerprint, stream.choose) for stream in self.streams]

    @property
    def allocation(self) -> list[Any]:
        """The settings that decide the stream and the draw of each position of an epoch."""
        names = [*MIXING]
        if len(self.streams) > 1:
            names.append("batching_method")
            if self.order.get("batching_method") in _WHOLE_STEPS:
                names.append("global_batch")
        return [self.numbering, self.amounts, *map(self.order.get, names)]

    def _differences(self, now: "LoaderState") -> dict[str, str]:
        """Return a line with both values for each setting that differs, by its name."""
        return {
            name: f"{name}: the state has {old!r}, this loader {new!r}"
            for name in sorted({*self.order, *now.order})
            if (old := self.order.get(name)) != (new := now.order.get(name))
        }

    def require_same_order(self, now: "LoaderState") -> None:
        """Refuse another order of the sequences in the middle of an epoch.

        Raises:
            ConfigMismatchError: naming both values of a setting that differs.
        """
        for name, difference in self._differences(now).items():
            if self.inside and name not in _NO_ORDER:
                raise ConfigMismatchError(
                    f"{difference}: it cannot change in the middle of an epoch. Finish the epoch "
                    "first."
                )

    def require_same(self, now: "LoaderState", *, allow_changes: Collection[str]) -> None:
        """Refuse to resume in another order.

        Args:
            now: the state of the loader that resumes.
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
        differences = self._differences(now)
        # Another epoch size leaves the streams the same: only their amounts may differ.
        parts = slice(1 if "epoch_size" in allow_changes else 2)
        if [each[parts] for each in self.amounts] != [each[parts] for each in now.amounts]:
            differences["streams"] = (
                f"streams: the state has (fingerprint, sequences per epoch) {self.amounts}, "
                f"this loader {now.amounts}"
            )
        lines = [line for name, line in differences.items() if name not in allow_changes]
        if lines:
            listed = "\n  ".join(["The state was saved with other settings:", *lines])
            raise ConfigMismatchError(f"{listed}\n{_OVERRIDE}")


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Add the checksum of everything that a state holds."""
    held = {name: value for name, value in state.items() if name != CHECKSUM}
    return held | {CHECKSUM: content_hash(json.dumps(held, sort_keys=True).encode())}
