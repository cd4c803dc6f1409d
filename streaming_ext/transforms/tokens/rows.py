"""The steps of a chain that make rows of a length out of samples of tokens."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streaming_ext.arguments.kinds import flag
from streaming_ext.transforms.checks import any_whole, names_of, whole
from streaming_ext.transforms.flow import Flow
from streaming_ext.transforms.tokens.bos_eos import Ends, open_ends
from streaming_ext.transforms.tokens.chunks import open_chunk, open_concat_chunk
from streaming_ext.transforms.tokens.packing import Padding, open_packed, open_padded

if TYPE_CHECKING:
    from streaming_ext.transforms.checkpointable import CheckpointableDataset


class RowsOfTokens(ABC):
    """What `CheckpointableDataset` does with columns of token ids, each (tokens,) a sample."""

    @abstractmethod
    def _then(
        self, told: str, step: Callable[..., Flow], **settings: Any
    ) -> "CheckpointableDataset":
        """The chain with one more step, which `told` describes."""

    def chunk(
        self, chunk_length: int, target_columns: Sequence[str] = ("input_ids",),
        drop_remainder: bool = True,
    ) -> "CheckpointableDataset":  # fmt: skip
        """Rows of so many tokens, of each sample alone; a shorter rest is left out."""
        chunk_length = whole(chunk_length=chunk_length, least=1)
        names, drop_remainder = names_of(target_columns), flag("drop_remainder", drop_remainder)
        told = f"chunk({chunk_length}, {', '.join(names)}, {drop_remainder})"
        return self._then(
            told, open_chunk, length=chunk_length, names=names, drop_remainder=drop_remainder
        )

    def concat_chunk(
        self, chunk_length: int, target_columns: Sequence[str] = ("input_ids",)
    ) -> "CheckpointableDataset":
        """Rows of so many tokens, of all samples behind each other."""
        chunk_length = whole(chunk_length=chunk_length, least=1)
        names = names_of(target_columns)
        told = f"concat_chunk({chunk_length}, {', '.join(names)})"
        return self._then(told, open_concat_chunk, length=chunk_length, names=names)

    def pack_chunk(
        self, chunk_length: int, target_columns: Sequence[str],
        discard_long_samples: bool = False,
    ) -> "CheckpointableDataset":  # fmt: skip
        """Rows of at most so many tokens, of whole samples; a longer one is cut, or left out."""
        chunk_length = whole(chunk_length=chunk_length, least=1)
        names = names_of(target_columns)
        discard_long_samples = flag("discard_long_samples", discard_long_samples)
        told = f"pack_chunk({chunk_length}, {', '.join(names)}, {discard_long_samples})"
        return self._then(
            told, open_packed, length=chunk_length, names=names, discard_long=discard_long_samples
        )

    def pad(self, pad_values: Mapping[str, int], chunk_length: int) -> "CheckpointableDataset":
        """Columns filled up to one length, each with its value."""
        pad_values = {name: any_whole(**{name: value}) for name, value in pad_values.items()}
        padding = Padding(pad_values, whole(chunk_length=chunk_length, least=1))
        values = ", ".join(f"{name}: {value}" for name, value in pad_values.items())
        return self._then(f"pad({chunk_length}, {values})", open_padded, padding=padding)

    def add_bos_eos(
        self, bos_token_id: int | None, eos_token_id: int | None, target_column: str = "input_ids"
    ) -> "CheckpointableDataset":
        """A token before and one behind those of each sample."""
        bos = None if bos_token_id is None else whole(bos_token_id=bos_token_id, least=0)
        eos = None if eos_token_id is None else whole(eos_token_id=eos_token_id, least=0)
        added = Ends(bos, eos, target_column)
        told = f"add_bos_eos({bos}, {eos}, {target_column})"
        return self._then(told, open_ends, ends=added)
