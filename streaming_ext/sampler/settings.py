"""The arguments of a dataset that decide which sequence comes when, checked as one value."""

from dataclasses import dataclass
from typing import Any

from streaming_ext.errors import UsageError
from streaming_ext.sampler.order import OrderSpec

DEFAULT_LANES = 8
DEFAULT_WINDOW = 1 << 18
BATCHINGS = ("random", "per_stream")
PACKINGS = ("best_fit",)
_LEAST = {"sequence_length": 1, "batch_size": 1, "shuffle_seed": 0, "shuffle_block_size": 1,
          "num_canonical_nodes": 1, "max_repeated_ngram": 1}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderSettings:
    """See `StreamingTokenDataset` for the words; None where the user left a choice open."""

    split: str | None
    sequence_length: int | None
    batch_size: int | None
    shuffle: bool
    shuffle_seed: int
    shuffle_block_size: int
    num_canonical_nodes: int | None
    drop_last: bool | None
    batching_method: str = "random"
    packing: str | None = None
    exclude: str | None = None
    max_repeated_ngram: int | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"`{name}` must be at least {least}, got {value}.")
        if self.batching_method not in BATCHINGS:
            raise UsageError(
                f"`batching_method` must be {' or '.join(map(repr, BATCHINGS))}, got "
                f"{self.batching_method!r}: `random` mixes streams within a step, `per_stream` "
                "fills each step from one."
            )
        if self.packing not in (None, *PACKINGS):
            raise UsageError(
                f"`packing` must be {' or '.join(map(repr, PACKINGS))}, or None for sequences cut "
                f"out of one stream; got {self.packing!r}."
            )

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
        return OrderSpec(shuffle=self.shuffle, seed=self.shuffle_seed, lanes=self.lanes,
                         window=self.shuffle_block_size)  # fmt: skip

    def identity(self, sequence_length: int) -> dict[str, Any]:
        """What a state names of them, for sequences of a known length."""
        identity = {
            "split": self.split,
            "sequence_length": sequence_length,
            "shuffle": self.shuffle,
            "shuffle_seed": self.shuffle_seed,
            "shuffle_block_size": self.shuffle_block_size,
        }
        # What is not asked for is not named: such a state is what earlier versions saved.
        asked = {name: getattr(self, name) for name in ("packing", "exclude", "max_repeated_ngram")}
        if self.batching_method != "random":
            asked["batching_method"] = self.batching_method
        return identity | {name: value for name, value in asked.items() if value is not None}

    def of_group(self, sequence_length: int) -> dict[str, Any]:
        """What all nodes of a group must have alike."""
        return {
            **self.identity(sequence_length),
            "batch_size": self.batch_size,
            "drop_last": self.drops_last,
            "num_canonical_nodes": self.lanes,
        }
