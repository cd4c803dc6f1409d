"""The order of one pass over a dataset: which sequence each draw reads, computed on demand.

The groups of a dataset (a shard, or several shards where sequences cross their borders) are
permuted and laid end to end. That list of sequences is cut into canonical nodes, and in each
canonical node windows of `window` sequences are permuted. Both permutations are functions of a key,
so the state is a few numbers a group, whatever the number of sequences.

Everything is integer arithmetic written out here: NumPy promises no stream of random numbers from
one version to the next, and an order must outlive them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints, ceil_div

Keys = npt.NDArray[np.uint64]
Key = TypeVar("Key")
Value = TypeVar("Value")

_ROUNDS: Final = 6
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_WORD: Final = (1 << 64) - 1
_S30, _S27, _S31, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


def mix(keys: Keys) -> Keys:
    """Scramble 64-bit words, one to one: the finalizer of SplitMix64."""
    with np.errstate(over="ignore"):
        keys = keys + _GOLDEN
        # in place: for large arrays, memory costs more than arithmetic
        keys ^= keys >> _S30
        keys *= _MIX_1
        keys ^= keys >> _S27
        keys *= _MIX_2
        keys ^= keys >> _S31
        return keys


def _mix_number(key: int) -> int:
    """What `mix` makes of one word."""
    key = (key + 0x9E3779B97F4A7C15) & _WORD
    key = ((key ^ key >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    key = ((key ^ key >> 27) * 0x94D049BB133111EB) & _WORD
    return key ^ key >> 31


def key_of(*words: int) -> Keys:
    """A key of some integers: (1,)."""
    number = 0  # Python computes one number in a tenth of NumPy's time
    for word in words:
        number = _mix_number(number ^ _mix_number(word & _WORD))
    return np.array([number], np.uint64)


def with_words(keys: Keys, *words: Ints) -> Keys:
    """Keys of the words of `keys` and further ones: (n,), broadcast against each other."""
    for word in words:
        keys = mix(keys ^ mix(word.view(np.uint64)))
    return keys


def permutation(size: int, key: Keys) -> Ints:
    """A permutation of range(size), held in memory: for shards, not for sequences."""
    # Keys differ for different elements, since `mix` is one to one: the sort has no ties.
    return np.argsort(mix(key ^ mix(np.arange(size, dtype=np.uint64))), kind="stable")


def permute(positions: Ints, sizes: Ints, keys: Keys, *, inverse: bool = False) -> Ints:
    """Send each position to its image under a keyed permutation of range(size), or back.

    A Feistel network over pairs of digits in base ceil(sqrt(size)); an image that falls outside
    the range walks on along its cycle until it is inside, which for large sizes is rare.

    Args:
        positions: shape (n,), each in [0, size).
        sizes: shape (n,), the size of the range each position belongs to.
        keys: shape (n,); equal keys and sizes give the same permutation.
        inverse: whether `positions` are images, whose positions are wanted.

    Returns:
        shape (n,), each in [0, size).
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
    """The values that were made last. Several threads may use it: each operation is atomic."""

    def __init__(self, most: int) -> None:
        """Keep at most this many."""
        super().__init__()
        self._most = most

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not kept."""
        found = self.get(key)
        if found is None:
            found = make()
            for old in list(self.copy())[: max(0, len(self) + 1 - self._most)]:
                self.pop(old, None)
            self[key] = found
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderSpec:
    """What decides an order, besides the data.

    Attributes:
        shuffle: permute groups and windows, or keep both as they lie on disk.
        seed: any integer.
        canonical nodes: canonical nodes: independent walks through the data.
        window: sequences of a canonical node that are shuffled among each other.
    """

    shuffle: bool
    seed: int
    canonical_nodes: int
    window: int


class PassOrder(NamedTuple):
    """A pass over the sequences of a stream, or several of any streams, their arrays end to end.

    Draw d of a stream of N sequences, counted from the start of training, is in pass d // N and
    canonical node d % C. Draws walk each canonical node in step, so consecutive draws come from C
    positions of the list.

    Attributes:
        keys: of the windows of each pass: (passes,).
        sizes: sequences of each pass: (passes,).
        node_first: first draw in each canonical node: (passes, canonical nodes).
        node_length: draws in each: (passes, canonical nodes).
        node_start: where each starts in the list: (passes, canonical nodes).
        firsts: first sequence of each group, in the order of the list: (groups,).
        starts: where each group starts in the list: (groups,).
        spec: what decides the order.
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
            spec: what decides the order.
            bounds: first sequence of each group in the order on disk, then the number of all
                sequences; shape (groups + 1,), never falling.
            stream: number of the stream, part of the key.
            number: the pass, part of the key.
        """
        size, counts, nodes = int(bounds[-1]), np.diff(bounds), spec.canonical_nodes
        groups = np.arange(len(counts))
        if spec.shuffle:
            groups = permutation(len(counts), key_of(spec.seed, stream, number, 0))
        groups = groups[counts[groups] > 0]
        # The first draw of this pass may fall into any canonical node; they keep their numbers.
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
        """Several passes, of one spec: a hundred cost as much as two."""
        *columns, specs = zip(*passes, strict=True)
        joined = cls._make([*map(np.concatenate, columns), specs[0]])
        offsets = np.cumsum(joined.sizes) - joined.sizes
        counts = [len(each.starts) for each in passes]
        return joined._replace(
            node_start=joined.node_start + offsets[:, None],
            starts=joined.starts + np.repeat(offsets, counts),
        )

    def sequences(self, draws: Ints, at: Ints | int = 0) -> Ints:
        """The sequences of some draws, as their numbers in the order on disk: (n,).

        Args:
            draws: shape (n,).
            at: which of the passes each draw is of, (n,) or one number.
        """
        node = draws % self.spec.canonical_nodes
        depth = (draws - self.node_first[at, node]) // self.spec.canonical_nodes
        depth = self._in_windows(depth, node, at)
        position = self.node_start[at, node] + depth
        group = np.searchsorted(self.starts, position, side="right") - 1
        result: Ints = self.firsts[group] + position - self.starts[group]
        return result

    def draws_of(self, sequences: Ints) -> Ints:
        """The draws of the one pass that are some sequences: `sequences` backwards."""
        on_disk = np.argsort(self.firsts)
        at = np.searchsorted(self.firsts, sequences, side="right", sorter=on_disk) - 1
        group = on_disk[at]
        position = self.starts[group] + sequences - self.firsts[group]
        node = np.searchsorted(self.node_start[0], position, side="right") - 1
        depth = position - self.node_start[0, node]
        depth = self._in_windows(depth, node, 0, inverse=True)
        result: Ints = self.node_first[0, node] + depth * self.spec.canonical_nodes
        return result

    def _in_windows(
        self, depth: Ints, node: Ints, at: Ints | int, *, inverse: bool = False
    ) -> Ints:
        """Depths in canonical nodes, permuted within their windows, or back: (n,)."""
        if not self.spec.shuffle:
            return depth
        window = depth // self.spec.window
        begin = window * self.spec.window
        sizes = np.minimum(self.spec.window, self.node_length[at, node] - begin)
        keys = with_words(self.keys[at], node, window)
        return begin + permute(depth - begin, sizes, keys, inverse=inverse)


class StreamOrders:
    """All passes over some streams: draw d of a stream is in its pass d // size."""

    def __init__(
        self, spec: OrderSpec, *, bounds: Sequence[Ints], left_out: Sequence[Ints] | None = None
    ) -> None:
        """Lay out the streams.

        Args:
            spec: what decides the order.
            bounds: see `PassOrder`, one a stream.
            left_out: sequences that no pass holds, sorted, one array a stream.
        """
        self._spec = spec
        self._left_out = left_out or [np.empty(0, np.int64) for _ in bounds]
        # Of the sequences that are kept, numbered without those that are left out.
        self._bounds: list[Ints] = [
            own - np.searchsorted(out, own) for own, out in zip(bounds, self._left_out, strict=True)
        ]
        self.sizes: Ints = np.array([own[-1] for own in self._bounds], np.int64)
        # An epoch's end needs two passes of each stream.
        self._passes: Recent[tuple[int, int], PassOrder] = Recent(3 * len(bounds))
        # The passes looked up last, by a number of each: pass * streams + stream.
        self._joined = np.zeros(1, np.int64), self.at_pass(0, 0)
        # Of all streams end to end; in between, room for what is looked up in each.
        self._room: Ints = np.concatenate([[0], np.cumsum(self.sizes + 1)])[:-1]
        # How many are kept before each that is left out: sequences 2 and 3 of five are out,
        # so 0, 1 and 2 of those that are kept are 0, 1 and 4: two are left out before the last.
        self._kept_before = np.concatenate(
            [
                own - np.arange(len(own)) + room
                for own, room in zip(self._left_out, self._room, strict=True)
            ]
        )
        self._first_left_out = np.searchsorted(self._kept_before, self._room)

    def sequences(self, streams: Ints, draws: Ints) -> Ints:
        """The sequences of some draws of some streams, in any order: (n,) each."""
        codes = draws // self.sizes[streams] * len(self.sizes) + streams
        known, passes = self._joined  # another thread may look ahead meanwhile
        at = np.minimum(np.searchsorted(known, codes), len(known) - 1)
        if (known[at] != codes).any():
            known, at = np.unique(codes, return_inverse=True)
            wanted = (divmod(code, len(self.sizes)) for code in known.tolist())
            passes = PassOrder.joined([self.at_pass(stream, number) for number, stream in wanted])
            self._joined = known, passes
        found = passes.sequences(draws, at)
        if self._kept_before.size:
            before = np.searchsorted(self._kept_before, found + self._room[streams], side="right")
            found = found + before - self._first_left_out[streams]
        return found

    def draws_of(self, stream: int, sequences: Ints, draws: range) -> list[int]:
        """The draws of some sequences within a range of draws."""
        left_out, size = self._left_out[stream], int(self.sizes[stream])
        sequences = sequences[~np.isin(sequences, left_out)]
        kept = sequences - np.searchsorted(left_out, sequences)
        passes = range(draws.start // size, ceil_div(draws.stop, size))
        found = [self.at_pass(stream, number).draws_of(kept[kept < size]) for number in passes]
        return [draw for own in found for draw in own.tolist() if draw in draws]

    def at_pass(self, stream: int, number: int) -> PassOrder:
        """One pass over a stream."""
        return self._passes.get_or_make(
            (stream, number),
            lambda: PassOrder.of(
                self._spec, bounds=self._bounds[stream], stream=stream, number=number
            ),
        )
