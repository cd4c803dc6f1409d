"""The order of one pass over a dataset: which sequence each draw reads, computed on demand.

The groups of a dataset (a shard, or several shards if sequences cross their borders) are
permuted and laid end to end. That list of sequences is cut into canonical nodes, and in each
canonical node windows of `window` sequences are permuted. Both permutations are functions of a key,
so the state is a few numbers per group, whatever the number of sequences.

    groups of 5, 4 and 3 sequences; 2 canonical nodes; windows of 4; groups permuted to 2, 0, 1:
    list     9 10 11 0 1 2 | 3 4 5 6 7 8, in windows (9 10 11 0) (1 2) | (3 4 5 6) (7 8)
    windows  permuted: (11 9 0 10) (2 1) | (6 4 5 3) (8 7)
    draws    from the two nodes in turn: 11 6 9 4 0 5 10 3 2 8 1 7

Everything is integer arithmetic written out here: an order must never change, and NumPy does not
promise the same random numbers in every version.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints, ceil_div, scrambled

Keys = npt.NDArray[np.uint64]
Key = TypeVar("Key")
Value = TypeVar("Value")

_ROUNDS: Final = 6
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_WORD: Final = (1 << 64) - 1
_S32 = np.uint64(32)


def mix(keys: Keys) -> Keys:
    """Scramble 64-bit words, one to one: the finalizer of SplitMix64."""
    with np.errstate(over="ignore"):
        # in place: for large arrays, memory costs more than arithmetic
        return scrambled(keys + _GOLDEN)


def _mix_number(key: int) -> int:
    """Scramble one word as `mix` does."""
    key = (key + 0x9E3779B97F4A7C15) & _WORD
    key = ((key ^ key >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    key = ((key ^ key >> 27) * 0x94D049BB133111EB) & _WORD
    return key ^ key >> 31


def key_of(*words: int) -> Keys:
    """Make a key of some integers: (1,)."""
    number = 0  # Python computes one number in a tenth of NumPy's time
    for word in words:
        number = _mix_number(number ^ _mix_number(word & _WORD))
    return np.array([number], np.uint64)


def with_words(keys: Keys, *words: Ints) -> Keys:
    """Add further words to keys: (n,), broadcast against each other."""
    for word in words:
        keys = mix(keys ^ mix(word.view(np.uint64)))
    return keys


def permutation(size: int, key: Keys) -> Ints:
    """Permute range(size) in memory: for shards, not for sequences."""
    # Keys differ for different elements, since `mix` is one to one: the sort has no ties.
    return np.argsort(mix(key ^ mix(np.arange(size, dtype=np.uint64))), kind="stable")


def permute(positions: Ints, sizes: Ints, keys: Keys, *, inverse: bool = False) -> Ints:
    """Send each position to its image under a keyed permutation of range(size), or back.

    This is a Feistel network over pairs of digits in base ceil(sqrt(size)). An image outside the
    range is permuted again until it is inside, which is rare for large sizes.

        size 7, base 3: position 5 has the digits 1 2; if the rounds turn them into 2 1, that is 7,
        outside of range(7), so it is permuted again; if the rounds turn 2 1 into 0 1, that is 1:
        position 5 goes to 1

    Args:
        positions: the positions, each in [0, size): (n,).
        sizes: the size of the range of each position: (n,).
        keys: the key of each position: (n,). Equal keys and sizes give the same permutation.
        inverse: True to find the positions whose images are `positions`.

    Returns:
        the images, or the positions, each in [0, size): (n,).
    """
    base = np.ceil(np.sqrt(sizes.astype(np.float64))).astype(np.int64)
    base += base * base < sizes  # if the square root was rounded down
    image = _feistel(positions, base, keys, inverse=inverse)
    outside = np.flatnonzero(image >= sizes)
    while outside.size:
        image[outside] = _feistel(image[outside], base[outside], keys[outside], inverse=inverse)
        outside = outside[image[outside] >= sizes[outside]]
    return image


def _feistel(positions: Ints, base: Ints, keys: Keys, *, inverse: bool) -> Ints:
    first, second = np.divmod(positions, base)
    rounds = range(_ROUNDS)
    if inverse:  # the same rounds from the last to the first, with the digits exchanged
        first, second, rounds = second, first, rounds[::-1]
    for number in rounds:
        word = mix((keys + np.uint64(number)) ^ (second.astype(np.uint64) << _S32))
        # The upper half of the word, scaled to [0, base): cheaper than a remainder.
        shift = ((word >> _S32) * base.astype(np.uint64) >> _S32).astype(np.int64)
        if inverse:
            shift = base - shift
        shift += first
        shift -= np.where(shift >= base, base, 0)
        first, second = second, shift
    if inverse:
        first, second = second, first
    result: Ints = first * base + second
    return result


class Recent(dict[Key, Value]):
    """A cache of the values made last; threads may share it, since each operation is atomic."""

    def __init__(self, most: int) -> None:
        """Keep at most `most` values."""
        super().__init__()
        self._most = most

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key; make it if it is not kept."""
        found = self.get(key)
        if found is None:
            found = make()
            for old in list(self.copy())[: max(0, len(self) + 1 - self._most)]:
                self.pop(old, None)
            self[key] = found
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderSpec:
    """The settings that decide an order, besides the data.

    Attributes:
        shuffle: True to permute groups and windows, False to keep the order on disk.
        seed: any integer.
        canonical_nodes: the number of independent walks through the data.
        window: sequences of a canonical node that are shuffled among each other.
    """

    shuffle: bool
    seed: int
    canonical_nodes: int
    window: int


class PassOrder(NamedTuple):
    """One pass over the sequences of a stream, or several passes with their arrays end to end.

    Draw d of a stream of N sequences, counted from the start of training, is in pass d // N and
    canonical node d % C. Draws take the canonical nodes in turn, so C consecutive draws come from
    all C of them.

        7 sequences, 3 canonical nodes; pass 1 has the draws 7 to 13
        node 0 has the draws 9 and 12, node 1 has 7, 10 and 13, node 2 has 8 and 11
        node_first [9, 7, 8], node_length [2, 3, 2], node_start [0, 2, 5]

    Attributes:
        keys: the key of the windows of each pass: (passes,).
        sizes: sequences of each pass: (passes,).
        node_first: the first draw in each canonical node: (passes, canonical nodes).
        node_length: draws in each canonical node: (passes, canonical nodes).
        node_start: the first position of each node in the list: (passes, canonical nodes).
        firsts: the first sequence of each group, in the order of the list: (groups,).
        starts: the first position of each group in the list: (groups,).
        spec: the settings of the order.
    """

    keys: Keys
    sizes: Ints
    node_first: Ints
    node_length: Ints
    node_start: Ints
    firsts: Ints
    starts: Ints
    spec: OrderSpec

    @classmethod
    def of(cls, spec: OrderSpec, *, bounds: Ints, stream: int = 0, number: int = 0) -> "PassOrder":
        """Lay out one pass.

        Args:
            spec: the settings of the order.
            bounds: the first sequence of each group in the order on disk, then the number of all
                sequences: (groups + 1,), never falling.
            stream: the number of the stream, part of the key.
            number: the number of the pass, part of the key.
        """
        size, counts, nodes = int(bounds[-1]), np.diff(bounds), spec.canonical_nodes
        groups = np.arange(len(counts))
        if spec.shuffle:
            groups = permutation(len(counts), key_of(spec.seed, stream, number, 0))
        groups = groups[counts[groups] > 0]
        # The first draw of this pass may fall into any canonical node: nodes keep their numbers.
        first_draw = number * size
        node_first = first_draw + (np.arange(nodes) - first_draw) % nodes
        lengths = np.maximum(0, ceil_div(first_draw + size - node_first, nodes))
        return cls(
            keys=key_of(spec.seed, stream, number, 1),
            sizes=bounds[-1:],
            node_first=node_first[None],
            node_length=lengths[None],
            node_start=(np.cumsum(lengths) - lengths)[None],
            firsts=bounds[groups],
            starts=np.cumsum(counts[groups]) - counts[groups],
            spec=spec,
        )

    @classmethod
    def joined(cls, passes: "Sequence[PassOrder]") -> "PassOrder":
        """Join several passes of one spec: a lookup in a hundred costs as much as in two."""
        *columns, specs = zip(*passes, strict=True)
        joined = cls._make([*map(np.concatenate, columns), specs[0]])
        offsets = np.cumsum(joined.sizes) - joined.sizes
        counts = [len(each.starts) for each in passes]
        return joined._replace(
            node_start=joined.node_start + offsets[:, None],
            starts=joined.starts + np.repeat(offsets, counts),
        )

    def sequences(self, draws: Ints, passes: Ints | int = 0) -> Ints:
        """Find the sequences of some draws, as their numbers in the order on disk: (n,).

        Args:
            draws: the draws: (n,).
            passes: the number of each draw's pass among the joined ones: (n,), or one number.
        """
        node = draws % self.spec.canonical_nodes
        depth = (draws - self.node_first[passes, node]) // self.spec.canonical_nodes
        position = self.node_start[passes, node] + self._permuted(depth, node, passes)
        group = np.searchsorted(self.starts, position, side="right") - 1
        result: Ints = self.firsts[group] + position - self.starts[group]
        return result

    def draws_of(self, sequences: Ints) -> Ints:
        """Find the draws of some sequences in a single pass: the inverse of `sequences`."""
        on_disk = np.argsort(self.firsts)
        group = on_disk[np.searchsorted(self.firsts, sequences, side="right", sorter=on_disk) - 1]
        position = self.starts[group] + sequences - self.firsts[group]
        node = np.searchsorted(self.node_start[0], position, side="right") - 1
        depth = self._permuted(position - self.node_start[0, node], node, 0, inverse=True)
        result: Ints = self.node_first[0, node] + depth * self.spec.canonical_nodes
        return result

    def _permuted(
        self, depth: Ints, node: Ints, passes: Ints | int, *, inverse: bool = False
    ) -> Ints:
        """Permute depths in canonical nodes within their windows, or back: (n,)."""
        if not self.spec.shuffle:
            return depth
        window = depth // self.spec.window
        begin = window * self.spec.window
        sizes = np.minimum(self.spec.window, self.node_length[passes, node] - begin)
        keys = with_words(self.keys[passes], node, window)
        return begin + permute(depth - begin, sizes, keys, inverse=inverse)
