"""The arguments of a dataset that decide which sequence comes when, checked as one value."""

from dataclasses import dataclass
from typing import Any

from streaming_ext.arguments.kinds import MOST, count, flag
from streaming_ext.errors import UsageError
from streaming_ext.sampler.batching import Batching
from streaming_ext.sampler.orders.order import OrderSpec
from streaming_ext.sampler.schedule import Schedule
from streaming_ext.sampler.stages import StepSizes

DEFAULT_LANES = 8
DEFAULT_WINDOW = 1 << 18
PACKINGS = ("best_fit",)
_LEAST = {
    "batch_size": 1,
    "shuffle_seed": 0,
    "shuffle_block_size": 1,
    "num_canonical_nodes": 1,
    "max_repeated_ngram": 1,
    "document_multiple": 1,
}
_ALWAYS = {"shuffle_seed", "shuffle_block_size"}  # the others may be left open
_MOST = {"num_canonical_nodes": 1 << 16}


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderSettings:
    """See `StreamingTokenDataset` for the words; None where the user left a choice open."""

    split: str | None
    sequence_length: int | str | None
    batch_size: int | None
    shuffle: bool
    shuffle_seed: int
    shuffle_block_size: int
    num_canonical_nodes: int | None
    drop_last: bool | None
    batching_method: str = "random"
    packing: str | None = None
    document_multiple: int | None = None
    exclude: str | None = None
    max_repeated_ngram: int | None = None
    global_batch: int | str | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.global_batch is not None:
            raise UsageError(
                f"Give batch_size={self.batch_size}, the sequences a rank and step, or "
                f"global_batch={self.global_batch!r}, those of all ranks, not both."
            )
        for name, least in _LEAST.items():
            whole = count(
                name,
                getattr(self, name),
                least=least,
                most=_MOST.get(name, MOST),
                optional=name not in _ALWAYS,
            )
            object.__setattr__(self, name, whole)
        object.__setattr__(self, "shuffle", flag("shuffle", self.shuffle))
        if self.drop_last is not None:
            object.__setattr__(self, "drop_last", flag("drop_last", self.drop_last))
        Batching.parse(self.batching_method)
        if self.packing not in (None, *PACKINGS):
            raise UsageError(
                f"`packing` must be {' or '.join(map(repr, PACKINGS))}, or None for sequences cut "
                f"out of one stream; got {self.packing!r}."
            )

        if self.document_multiple is not None and self.packing is None:
            raise UsageError(
                "`document_multiple` is of documents that are packed: give packing='best_fit'."
            )

    def sizes(self, *, own_length: int, num_ranks: int) -> "Sizes":
        """The sizes of the steps.

        Args:
            own_length: tokens a sequence where the user named none.
            num_ranks: data-parallel ranks.

        Raises:
            UsageError: lengths, batches and ranks do not fit together, or a change of them does
                not go with what else is asked for.
        """
        asked = own_length if self.sequence_length is None else self.sequence_length
        length = Schedule.whole(asked, name="sequence_length")
        if self.global_batch is None:
            batch = Schedule.whole((self.batch_size or 1) * num_ranks, name="batch_size")
        else:
            batch = Schedule.whole(self.global_batch, name="global_batch")
        steps = StepSizes(batch, length)
        steps.require_ranks(num_ranks)
        if steps.change:
            self._require_change(lengths=not length.constant)
        first, _ = steps.at(0)
        named = self.batch_size is not None or self.global_batch is not None
        batching = Batching.parse(self.batching_method).on_ranks(
            batch_size=first // num_ranks, num_ranks=num_ranks
        )
        return Sizes(
            steps=steps,
            batch_size=first // num_ranks,
            named=named,
            largest=batch.largest // num_ranks,
            batching=batching,
            lanes=batching.lanes(self.lanes),
        )

    def _require_change(self, *, lengths: bool) -> None:
        what = "sequence_length" if lengths else "global_batch"
        if not self.drops_last:
            raise UsageError(
                f"`{what}` changes with the tokens of training; an evaluation (split='holdout', "
                "drop_last=False) reads every sequence in steps of one size. Give it numbers."
            )
        if self.batching_method != "random":
            raise UsageError(
                f"`{what}` changes, and batching_method={self.batching_method!r} deals out steps "
                "of one size. "
                "Give numbers, or batching_method='random'."
            )
        if lengths and self.packing is not None:
            raise UsageError(
                "`sequence_length` changes, and packing= fits whole documents into rows of one "
                "length: shorter pieces would cut them. Give a number, or packing=None."
            )

    @property
    def longest(self) -> int | None:
        """Tokens of the longest sequences, None where the user named none."""
        asked = self.sequence_length
        return None if asked is None else Schedule.whole(asked, name="sequence_length").largest

    @property
    def lanes(self) -> int:
        """Canonical nodes, also where none were named."""
        return self.num_canonical_nodes or (DEFAULT_LANES if self.shuffle else 1)

    @property
    def drops_last(self) -> bool:
        """Whether a short last step is left out: by default so, but not of the holdout."""
        return self.split != "holdout" if self.drop_last is None else self.drop_last

    @property
    def spec(self) -> OrderSpec:
        """The order within each stream."""
        return OrderSpec(
            shuffle=self.shuffle,
            seed=self.shuffle_seed,
            lanes=self.lanes,
            window=self.shuffle_block_size,
        )

    def identity(self, sizes: "Sizes") -> dict[str, Any]:
        """What a state names of them, for steps of known sizes."""
        identity = {
            "split": self.split,
            "sequence_length": sizes.named_length,
            "shuffle": self.shuffle,
            "shuffle_seed": self.shuffle_seed,
            "shuffle_block_size": self.shuffle_block_size,
        }
        # What is not asked for is not named: such a state is what earlier versions saved.
        asked = {
            name: getattr(self, name)
            for name in ("packing", "document_multiple", "exclude", "max_repeated_ngram")
        }
        if self.batching_method != "random":
            asked["batching_method"] = str(sizes.batching)
        return identity | {name: value for name, value in asked.items() if value is not None}

    def of_group(self, sizes: "Sizes") -> dict[str, Any]:
        """What all nodes of a group must have alike."""
        return {
            **self.identity(sizes),
            "batch_size": self.batch_size or self.global_batch,
            "drop_last": self.drops_last,
            "num_canonical_nodes": self.lanes,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The sizes of all steps, for one rank.

    Attributes:
        steps: of all ranks.
        batch_size: sequences a rank in the first step.
        largest: the most sequences a rank and step.
        named: whether the user named a batch.
        batching: how several streams share a step.
        lanes: by which ranks take the sequences of a step.
    """

    steps: StepSizes
    batch_size: int
    largest: int
    named: bool
    batching: Batching
    lanes: int

    @property
    def length(self) -> int:
        """Tokens of the longest sequences."""
        return self.steps.longest

    @property
    def lengths(self) -> list[int]:
        """Tokens of the sequences, of each stage."""
        return [int(point.value) for point in self.steps.length.points]

    @property
    def named_length(self) -> int | str:
        """The length as a state names it."""
        schedule = self.steps.length
        return schedule.largest if schedule.constant else str(schedule)

    @property
    def pieces(self) -> int:
        """Sequences that a row of the longest length makes in the first step."""
        return self.length // self.lengths[0]

    @property
    def changing(self) -> StepSizes | None:
        """The sizes where they change."""
        return self.steps if self.steps.change else None
