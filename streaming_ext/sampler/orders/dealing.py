"""How the places of an epoch are dealt out to several streams, in whole rows."""

from collections.abc import Sequence

from streaming_ext.errors import UsageError
from streaming_ext.sampler.batching import Batching
from streaming_ext.sampler.cursor import Cursor
from streaming_ext.sampler.orders.mixing import Mixing
from streaming_ext.sampler.orders.mixture import Mixture
from streaming_ext.sampler.orders.order import OrderSpec


class Dealing:
    """The mixture of each epoch: the same one for all, or one of where the epoch begins.

    Attributes:
        row: places in a row that all draw from one stream.
        epoch_size: places of an epoch.
        choose: sequences of each stream an epoch; with `mixing` only their sum counts.
        mixing: proportions of the streams, where they change or have limits.
    """

    def __init__(
        self,
        spec: OrderSpec,
        *,
        sizes: Sequence[int],
        choose: Sequence[int],
        batching: Batching,
        global_batch: int,
        drop_last: bool,
        mixing: Mixing | None,
        length: int,
    ) -> None:
        """Deal out the rows, where every epoch has the same.

        Args:
            spec: the order within each stream.
            sizes: sequences of each stream, (streams,).
            choose: sequences of each stream an epoch, (streams,).
            batching: how several streams share a step.
            global_batch: places a step, over all ranks.
            drop_last: leave out of each stream what makes no whole row; or fill that up.
            mixing: proportions of the streams, where they change or have limits.
            length: tokens a place.

        Raises:
            UsageError: a stream gives less than one row an epoch.
        """
        self.mixing = mixing
        self._sizes, self._length = sizes, length
        self._seed, self._shuffle = spec.seed, spec.shuffle
        self._same: Mixture | None = None
        self._mixtures: dict[tuple[int, tuple[int, ...]], Mixture] = {}
        self.row = 1
        if len(sizes) > 1:
            self.row = batching.row(global_batch=global_batch, lanes=spec.lanes)
            choose = self._whole_rows(choose, batching, global_batch, drop_last=drop_last)
        self.epoch_size = sum(self._same.rows) * self.row if self._same else sum(choose)
        self.choose = tuple(choose)

    def _whole_rows(
        self, choose: Sequence[int], batching: Batching, global_batch: int, *, drop_last: bool
    ) -> list[int]:
        """What each stream gives an epoch; where that is fixed, deal out its rows.

        These are whole ones; without `drop_last` the last one of each stream is filled up.
        """
        if self.mixing is not None:
            return [sum(choose) // self.row * self.row]
        fill = 0 if drop_last else self.row - 1
        rows = tuple((count + fill) // self.row for count in choose)
        if 0 in rows:
            least, instead = batching.least(self.row)
            raise UsageError(
                f"A stream gives {min(choose)} sequences an epoch, less than {least}. Raise "
                f"its share, or {instead}."
            )
        window = batching.window(global_batch=global_batch)
        self._same = Mixture(
            rows, lanes=self.row, seed=self._seed, shuffle=self._shuffle, window=window
        )
        return [count * self.row for count in rows] if drop_last else list(choose)

    def chosen(self, cursor: Cursor) -> tuple[int, ...]:
        """Sequences of each stream in the cursor's epoch."""
        mixture = None if self.mixing is None else self.mixture_of(cursor)
        return self.choose if mixture is None else tuple(rows * self.row for rows in mixture.rows)

    def mixture_of(self, cursor: Cursor) -> Mixture | None:
        """How the cursor's epoch is dealt out to several streams; None where there is one."""
        if self.mixing is None:
            return self._same
        key = (cursor.tokens, cursor.before)
        found = self._mixtures.get(key)
        if found is None:
            room = self.mixing.room(self._sizes, cursor.before, row=self.row)
            spans = self.mixing.spans(
                tokens=cursor.tokens,
                rows=self.epoch_size // self.row,
                row_tokens=self.row * self._length,
                room=room,
            )
            found = Mixture(*spans, lanes=self.row, seed=self._seed, shuffle=self._shuffle)
            for old in list(self._mixtures.copy())[:-2]:  # another thread may look ahead meanwhile
                self._mixtures.pop(old, None)
            self._mixtures[key] = found
        return found
