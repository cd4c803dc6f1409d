"""The arguments of a dataset that decide which sequence comes when, checked as one value."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from streaming_ext.base.errors import UsageError
from streaming_ext.base.kinds import check_fields, checked, flag, integer, one_of
from streaming_ext.base.units import parse_count
from streaming_ext.order.mixing import METHODS
from streaming_ext.order.order import OrderSpec
from streaming_ext.order.steps import Schedule, StepSizes

DEFAULT_CANONICAL_NODES: Final = 8
DEFAULT_WINDOW: Final = 1 << 18
PACKINGS: Final = ("best_fit",)


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderSettings:
    """The settings that decide the order of sequences; a state names them all.

    Attributes:
        split: `train`, `holdout`, or None if the folder is a plain MDS set itself.
        sequence_length: tokens per sequence; the dataset's own unless given. Also as a schedule in
            tokens of training, "0:512 10B:2048"; each length divides the longest.
        batch_size: sequences per rank and step: the DataLoader's batch size.
        global_batch: sequences per step over all ranks, in place of `batch_size`; also as a
            schedule, "0:768 250B:1536". Schedules of lengths or batches need
            `StreamingTokenLoader`.
        shuffle: True to shuffle groups and windows, with a new order each pass.
        shuffle_seed: any whole number from 0, below 2^63.
        shuffle_block_size: sequences of a canonical node that are shuffled among each other.
        num_canonical_nodes: independent walks through the data: 8 when shuffled, else 1. A multiple
            of the number of nodes lets each node fetch only its part.
        epoch_size: sequences per epoch (`64M` for 64 million), all by default; the next epoch
            continues after them.
        drop_last: True to leave out a last step that is less than a global batch, the default
            except for the holdout split; False to fill it up: `real` says which rows count.
        batching_method: `random` mixes streams in a step, `stratified` does so in the proportions
            of the epoch; `per_stream` fills a step from one stream, `device_per_stream` each
            rank's batch.
        packing: `best_fit` for rows of whole documents, planned once; only documents
            longer than a row are cut. None for sequences cut out of one stream.
        document_multiple: the multiple of tokens to which each document is padded in a packed
            row.
        exclude: a Parquet table of documents (`source` and `row`, as `shardmill trace --output`
            writes it); packed rows do not hold them, sequences with a token of one are left out.
        max_repeated_ngram: the largest number of direct repeats of an n-gram of 1 to 13 tokens;
            rows in which one repeats more often do not count: `real` is False, `targets` -100.
    """

    split: str | None = "train"
    sequence_length: int | str | None = None
    batch_size: int | None = checked(None, integer(1))
    global_batch: int | str | None = None
    shuffle: bool = checked(False, flag)
    shuffle_seed: int = checked(9176, integer(0))
    shuffle_block_size: int = checked(DEFAULT_WINDOW, integer(1))
    num_canonical_nodes: int | None = checked(None, integer(1, most=1 << 16))
    epoch_size: int | str | None = checked(None, lambda name, given: parse_count(given, name=name))
    drop_last: bool | None = checked(None, flag)
    batching_method: str = checked("random", one_of(*METHODS))
    packing: str | None = checked(None, one_of(*PACKINGS))
    document_multiple: int | None = checked(None, integer(1))
    exclude: str | Path | None = None
    max_repeated_ngram: int | None = checked(None, integer(1))

    def __post_init__(self) -> None:
        check_fields(self)
        if self.batch_size is not None and self.global_batch is not None:
            raise UsageError(
                f"Give batch_size={self.batch_size}, the sequences per rank and step, or "
                f"global_batch={self.global_batch!r}, those of all ranks, not both."
            )
        if self.document_multiple is not None and self.packing is None:
            raise UsageError(
                "`document_multiple` needs documents that are packed: give packing='best_fit'."
            )

    def steps(self, *, own_length: int, num_ranks: int) -> StepSizes:
        """Read the sizes of the steps, over all ranks.

        Args:
            own_length: tokens per sequence if the user named none.
            num_ranks: the number of data-parallel ranks.

        Raises:
            UsageError: lengths, batches and ranks do not fit together, or a change of them does
                not fit the other arguments.
        """
        given = own_length if self.sequence_length is None else self.sequence_length
        length = Schedule.of_integers(given, name="sequence_length")
        if self.global_batch is None:
            batch = Schedule.of_integers((self.batch_size or 1) * num_ranks, name="batch_size")
        else:
            batch = Schedule.of_integers(self.global_batch, name="global_batch")
        steps = StepSizes(batch, length)
        steps.require_ranks(num_ranks)
        if steps.change:
            self._require_change(lengths=not length.constant)
        return steps

    def _require_change(self, *, lengths: bool) -> None:
        what = "sequence_length" if lengths else "global_batch"
        if not self.drops_last:
            why = "an evaluation (split='holdout', drop_last=False) has steps of one size"
        elif self.batching_method != "random":
            why = f"batching_method={self.batching_method!r} needs steps of one size"
        elif lengths and self.packing is not None:
            why = "packing= fits whole documents into rows of one length"
        else:
            return
        raise UsageError(f"`{what}` changes with the tokens of training, and {why}. Give a number.")

    @property
    def names_batch(self) -> bool:
        """True if the user says what a step holds."""
        return self.batch_size is not None or self.global_batch is not None

    @property
    def longest(self) -> int | None:
        """Tokens of the longest sequences, None if the user named none."""
        given = self.sequence_length
        return (
            None if given is None else Schedule.of_integers(given, name="sequence_length").largest
        )

    @property
    def epoch_sequences(self) -> int | None:
        """Sequences per epoch, None if the user named none."""
        return None if self.epoch_size is None else int(self.epoch_size)

    @property
    def canonical_nodes(self) -> int:
        """The number of canonical nodes: the given one, or the default."""
        return self.num_canonical_nodes or (DEFAULT_CANONICAL_NODES if self.shuffle else 1)

    @property
    def drops_last(self) -> bool:
        """True if a short last step is left out, the default except for the holdout split."""
        return self.split != "holdout" if self.drop_last is None else self.drop_last

    @property
    def spec(self) -> OrderSpec:
        """The order within each stream."""
        return OrderSpec(
            shuffle=self.shuffle,
            seed=self.shuffle_seed,
            canonical_nodes=self.canonical_nodes,
            window=self.shuffle_block_size,
        )

    def identity(self, steps: StepSizes, *, num_ranks: int) -> dict[str, Any]:
        """Return the settings of the order with defaults filled in, as a state names them.

        Sources, columns and mixtures name their own settings.

        Args:
            steps: the sizes of the steps.
            num_ranks: the number of data-parallel ranks.
        """
        method: str | None = self.batching_method
        if method == "device_per_stream":
            method = f"{method}:{steps.global_batch.largest // num_ranks}"
        return {
            "split": self.split,
            "sequence_length": steps.length.named,
            "global_batch": steps.global_batch.named,
            "shuffle": self.shuffle,
            "shuffle_seed": self.shuffle_seed,
            "shuffle_block_size": self.shuffle_block_size,
            "num_canonical_nodes": self.canonical_nodes,
            "epoch_size": self.epoch_size,
            "drop_last": self.drops_last,
            "batching_method": None if method == "random" else method,
        }
