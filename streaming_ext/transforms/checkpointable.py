"""`CheckpointableDataset`: a chain of steps from samples to batches, resumed at any sample."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import IterableDataset, default_collate, get_worker_info

from streaming_ext.base.errors import UsageError
from streaming_ext.base.kinds import flag, plain_integer, plain_real
from streaming_ext.transforms import steps
from streaming_ext.transforms.block import Block, Sample, State
from streaming_ext.transforms.flow import Flow, Input, Made, Opening, mapped, through
from streaming_ext.transforms.functions import (
    Crew,
    ExecutorType,
    Function,
    name_of,
    of_samples,
    parallel,
)
from streaming_ext.transforms.iterator import CheckpointableIterator
from streaming_ext.transforms.shuffling import shuffled
from streaming_ext.transforms.sources import (
    Shelf,
    cached,
    concatenated,
    interleaved,
    iterable_flow,
    repeated,
    sequence_flow,
)

if TYPE_CHECKING:
    from streaming_ext.format.spec import FormatName
    from streaming_ext.transforms.tokenizers import AnyTokenizer

Opener = Callable[[Opening, State | None], Flow]
Asks = Callable[[Opening], Opening]


class CheckpointableDataset(IterableDataset):  # type: ignore[type-arg]
    """Samples, each a dictionary, and steps that make others of them; a step changes no dataset.

    In the workers of a DataLoader, each has samples of its own: those of the source are dealt out.
    """

    def __init__(self, opener: Opener, described: str) -> None:
        """Take over how it is opened; `from_files` and its like are how to make one.

        Args:
            opener: makes a pass through it, from the beginning or from a place on.
            described: its steps, by which a state knows its chain.
        """
        self.open, self.described = opener, described

    def __iter__(self) -> CheckpointableIterator:
        return self.iter()

    def iter(self, state_dict: Mapping[str, Any] | None = None) -> CheckpointableIterator:
        """A pass through it; behind the samples before `state_dict`, which is left as it is.

        Raises:
            ConfigMismatchError: the state is of another chain, or of another number of workers.
        """
        info = get_worker_info()
        return self.iter_share((info.id, info.num_workers) if info else (0, 1), state_dict)

    def iter_share(
        self, share: tuple[int, int], state_dict: Mapping[str, Any] | None = None
    ) -> CheckpointableIterator:
        """The pass of one worker: its number, and how many there are."""
        return CheckpointableIterator(self, share, state_dict)

    def _then(
        self, told: str, flow: Callable[..., Flow], *, asks: Asks = Opening.asking, **settings: Any
    ) -> "CheckpointableDataset":
        """The chain with one more step.

        Args:
            told: what a state calls it.
            flow: makes blocks of an `Input`.
            asks: what the step asks its source for, where something is asked of it.
            settings: of the step.
        """
        opener = partial(_opened, source=self, flow=flow, asks=asks, settings=settings)
        return CheckpointableDataset(opener, f"{self.described} > {told}")

    def _step(
        self, step: Callable[..., Made], asks: Asks = Opening.asking, **settings: Any
    ) -> "CheckpointableDataset":
        """The chain with a step of blocks, which its settings describe."""
        told = _described(step, settings)
        return self._then(told, through, asks=asks, step=partial(step, **settings))

    def _mapped(
        self,
        function: Callable[..., Block],
        asks: Asks = Opening.asking,
        name: str | None = None,
        **settings: Any,
    ) -> "CheckpointableDataset":
        """The chain with a function of each block, which its settings describe."""
        told, of_block = _described(function, settings), partial(function, **settings)
        return self._then(told, mapped, asks=asks, function=of_block, name=name)

    @staticmethod
    def from_sequence(
        sequence: Sequence[Sample],
        repeat: bool = False,
        shuffle: bool = False,
        shuffle_seed: int = 42,
    ) -> "CheckpointableDataset":
        """Samples by their number, in an order that is another one each epoch if `shuffle`."""
        repeat, shuffle = flag("repeat", repeat), flag("shuffle", shuffle)
        seed = whole(shuffle_seed=shuffle_seed) if shuffle else None
        opener = partial(sequence_flow, sequence=sequence, repeat=repeat, seed=seed)
        return CheckpointableDataset(opener, f"from_sequence({len(sequence)}, {repeat}, {seed})")

    @staticmethod
    def from_iterable(iterable: Iterable[Sample], repeat: bool = False) -> "CheckpointableDataset":
        """Samples of what gives the same ones whenever it is iterated over; a resume skips."""
        repeat = flag("repeat", repeat)
        opener = partial(iterable_flow, iterable=iterable, repeat=repeat)
        return CheckpointableDataset(opener, f"from_iterable({repeat})")

    @staticmethod
    def from_files(  # noqa: PLR0917 - as its users call it
        urls: str | Sequence[str],
        repeat: bool = False,
        shuffle_shards: bool = False,
        format: "FormatName | Literal['auto']" = "auto",  # noqa: A002 - the name that users know
        n_active_shards: int = 10,
        n_standby_shards: int = 2,
        seed: int = 42,
        on_bad_document: Literal["fail", "skip"] = "fail",
    ) -> "CheckpointableDataset":
        """Samples of files: of several files in turns.

        Args:
            urls: files, folders, glob and brace patterns, on disk or hf://, s3://, gs://, az://,
                https://; all that `shardmill shard` takes.
            repeat: whether another epoch follows.
            shuffle_shards: whether files come in another order each epoch.
            format: of the files; "auto" for that which each one's name tells.
            n_active_shards: files that are read at once.
            n_standby_shards: files whose beginning is fetched before their turn comes.
            seed: of the order of files.
            on_bad_document: whether a record that cannot be read is an error or left out.

        Raises:
            UsageError: there are no such files.
            StorageError: a server refuses, or does not answer.
        """
        from streaming_ext.transforms.files import known_by, some_files

        active = whole(1, n_active_shards=n_active_shards)
        of_order = whole(seed=seed) if flag("shuffle_shards", shuffle_shards) else None
        files = some_files(
            urls,
            format,
            on_bad_document,
            repeat=flag("repeat", repeat),
            seed=of_order,
            active=active,
            standby=whole(0, n_standby_shards=n_standby_shards),
        )
        told = f"{files.repeat}, {of_order}, {active}, {format}, {on_bad_document}"
        told += f"; files {known_by(files.sources)}"
        return CheckpointableDataset(files.open, f"from_files({told})")

    def map(self, fn: Function) -> "CheckpointableDataset":
        """`fn(sample)` in place of each sample."""
        return self._mapped(of_samples, made_by=fn, kind="map")

    def filter(self, fn: Function) -> "CheckpointableDataset":
        """The samples for which `fn(sample)` is true."""
        return self._mapped(of_samples, name=f"filter({name_of(fn)})", made_by=fn, kind="filter")

    def filter_map(self, fn: Function) -> "CheckpointableDataset":
        """`fn(sample)` in place of each sample, where it is not None."""
        name = f"filter_map({name_of(fn)})"
        return self._mapped(of_samples, name=name, made_by=fn, kind="filter_map")

    def parallel_map(self, fn: Function, *workers: Any, **named: Any) -> "CheckpointableDataset":
        """`map` by workers; see `parallel_filter_map`."""
        return self._parallel("map", fn, *workers, **named)

    def parallel_filter(self, fn: Function, *workers: Any, **named: Any) -> "CheckpointableDataset":
        """`filter` by workers; see `parallel_filter_map`."""
        return self._parallel("filter", fn, *workers, **named)

    def parallel_filter_map(
        self, fn: Function, *workers: Any, **named: Any
    ) -> "CheckpointableDataset":
        """`filter_map` by workers.

        Args:
            fn: of a sample; None leaves it out.
            workers, named: `max_workers`; by default one a core. `prefetch_factor`: samples ahead,
                a worker (10). `ordered`: whether samples come in order, or as they are done (True).
                `executor_type`: "process" (the default) or "thread".
        """
        return self._parallel("filter_map", fn, *workers, **named)

    def _parallel(
        self, kind: str, fn: Function, *workers: Any, **named: Any
    ) -> "CheckpointableDataset":
        crew = Crew.of(*workers, **named)
        told = f"parallel_{kind}" + ("" if crew.ordered else f"({crew.unit}, unordered)")
        name = None if kind == "map" else f"parallel_{kind}({name_of(fn)})"
        function = partial(of_samples, made_by=fn, kind=kind)
        return self._then(told, parallel, function=function, crew=crew, name=name)

    def enumerate(self, count_column: str = "step") -> "CheckpointableDataset":
        """Samples with their number in a column."""
        step = partial(steps.enumerated, column=count_column)
        return self._then(f"enumerate({count_column})", through, step=step, same=True)

    def take(self, max_count: int) -> "CheckpointableDataset":
        """The first so many samples."""
        return self._step(steps.take, _same, count=whole(0, max_count=max_count))

    def stride(self, interval: int, offset: int) -> "CheckpointableDataset":
        """Every so many-th sample: of interval 3 and offset 1, the samples 1, 4, 7, ..."""
        interval, offset = whole(1, interval=interval), whole(0, offset=offset)
        require(offset < interval, "offset", f"in [0, {interval})", offset)
        return self._step(steps.stride, _same, interval=interval, offset=offset)

    def shuffle(self, buffer_size: int, seed: int = 42) -> "CheckpointableDataset":
        """Samples out of a buffer, a random one each time, as tf.data and webdataset do it."""
        slots, seed = whole(1, buffer_size=buffer_size), whole(seed=seed)
        return self._then(f"shuffle({slots}, {seed})", shuffled, asks=_same, slots=slots, seed=seed)

    def batch(
        self, batch_size: int, collate_fn: steps.Collate | None = None, drop_last: bool = False
    ) -> "CheckpointableDataset":
        """Samples in groups, put together by torch's `default_collate` or by `collate_fn`."""
        size, drop_last = whole(1, batch_size=batch_size), flag("drop_last", drop_last)
        collate = collate_fn or default_collate
        return self._step(steps.batched, size=size, drop_last=drop_last, collate=collate)

    def repeat(self, times: int | None = None) -> "CheckpointableDataset":
        """The same samples again and again, for ever or so many times."""
        times = None if times is None else whole(1, times=times)
        opener = partial(repeated, source=self, times=times)
        return CheckpointableDataset(opener, f"{self.described} > repeat({times})")

    def cache(self) -> "CheckpointableDataset":
        """The samples of a first pass in memory, for the passes behind it."""
        opener = partial(cached, source=self, shelf=Shelf())
        return CheckpointableDataset(opener, f"{self.described} > cache")

    def chunk(
        self,
        chunk_length: int,
        target_columns: Sequence[str] = ("input_ids",),
        drop_remainder: bool = True,
    ) -> "CheckpointableDataset":
        """Rows of so many tokens, of each sample alone; a shorter rest is left out."""
        length, names = whole(1, chunk_length=chunk_length), names_of(target_columns)
        rest, told = flag("drop_remainder", drop_remainder), f"chunk({length})"
        return self._mapped(
            steps.chunked, _asks(names), told, length=length, names=names, drop_rest=rest
        )

    def concat_chunk(
        self, chunk_length: int, target_columns: Sequence[str] = ("input_ids",)
    ) -> "CheckpointableDataset":
        """Rows of so many tokens, of all samples behind each other."""
        length, names = whole(1, chunk_length=chunk_length), names_of(target_columns)
        filled = self._filled(f"concat_chunk({length})", names, None)
        return filled._step(steps.concat_chunk, length=length, names=names)

    def pack_chunk(
        self, chunk_length: int, target_columns: Sequence[str], discard_long_samples: bool = False
    ) -> "CheckpointableDataset":
        """Rows of at most so many tokens, of whole samples; a longer one is cut, or left out."""
        length, names = whole(1, chunk_length=chunk_length), names_of(target_columns)
        longest = length if flag("discard_long_samples", discard_long_samples) else None
        filled = self._filled(f"pack_chunk({length})", names, longest)
        return filled._step(steps.packed, length=length, names=names)

    def _filled(
        self, name: str, names: Sequence[str], longest: int | None
    ) -> "CheckpointableDataset":
        """The samples that have tokens, at most `longest`."""
        return self._mapped(steps.filled, _asks(names), name, names=names, longest=longest)

    def pad(self, pad_values: Mapping[str, int], chunk_length: int) -> "CheckpointableDataset":
        """Columns filled up to one length, each with its value."""
        values = {name: whole(**{name: value}) for name, value in pad_values.items()}
        return self._mapped(steps.padded, length=whole(1, chunk_length=chunk_length), values=values)

    def add_bos_eos(
        self, bos_token_id: int | None, eos_token_id: int | None, target_column: str = "input_ids"
    ) -> "CheckpointableDataset":
        """A token before and one behind those of each sample."""
        bos = None if bos_token_id is None else whole(0, bos_token_id=bos_token_id)
        eos = None if eos_token_id is None else whole(0, eos_token_id=eos_token_id)
        asks = partial(_keeps, name=target_column)
        return self._mapped(steps.with_ends, asks, bos=bos, eos=eos, column=target_column)

    def sft(
        self,
        tokenizer: "AnyTokenizer",
        *,
        chat_template: str | None = None,
        messages: str = "messages",
        prompt: str | None = None,
        completion: str | None = None,
        max_workers: int = 1,
    ) -> "CheckpointableDataset":
        """Conversations to `input_ids`, `attention_mask`, `labels`; the latter leave prompts out.

        Args:
            tokenizer: a fast one of transformers.
            chat_template: with `{% generation %}` around what the assistant says; by default the
                tokenizer's own.
            messages: the column of a conversation.
            prompt, completion: columns of texts, instead of conversations.
            max_workers: threads.

        Raises:
            UsageError: the template cannot tell which tokens are the assistant's.
        """
        from streaming_ext.transforms.sft import labelling

        require(
            (prompt is None) == (completion is None),
            "completion",
            "given where prompt= is, and only there",
            completion,
        )
        pair = None if prompt is None or completion is None else (prompt, completion)
        function = labelling(tokenizer, chat_template, messages, pair)
        crew = Crew.of_blocks(whole(1, max_workers=max_workers))
        return self._then(f"sft({function.described})", parallel, function=function, crew=crew)

    def tokenize(  # noqa: PLR0917 - as its users call it
        self,
        tokenizer: "AnyTokenizer",
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        target_column: str = "text",
        parallel: bool = True,
        max_workers: int | None = 1,
        prefetch_factor: int = 10,
        ordered: bool = True,
        executor_type: ExecutorType = "thread",
        *,
        pattern: str | None = None,
    ) -> "CheckpointableDataset":
        """Texts to `input_ids`, a block at once.

        Args:
            tokenizer: as `shardmill shard` takes it ("gpt2", a file, a Hugging Face repository), or
                one of transformers, whose own ids these are.
            tokenizer_kwargs: of each call of one of transformers.
            target_column: that holds the texts.
            parallel: whether threads in the background do the work.
            max_workers: how many; None for one a core.
            prefetch_factor, ordered, executor_type: as `parallel_map` takes them; threads work
                a few blocks ahead, which come in order, whatever is said.
            pattern: of a .tiktoken file, see `shardmill shard`.
        """
        from streaming_ext.transforms.tokenizers import asks_text, tokenized, tokenizer_of

        workers = Crew.of(max_workers, prefetch_factor, ordered, executor_type).workers
        known = tokenizer_of(tokenizer, pattern=pattern, settings=tokenizer_kwargs)
        told = f"tokenize({known.described}, {target_column}{'' if parallel else ', here'})"
        return self._then(
            told,
            tokenized,
            asks=partial(asks_text, column=target_column),
            tokenizer=known,
            column=target_column,
            crew=Crew.of_blocks(workers if parallel else 0),
        )

    def ensure_bos_eos(
        self,
        tokenizer: "AnyTokenizer",
        target_column: str = "input_ids",
        pattern: str | None = None,
    ) -> "CheckpointableDataset":
        """The tokenizer's first and last token around each sample's, where it adds none itself."""
        from streaming_ext.transforms.tokenizers import tokenizer_of

        bos, eos = tokenizer_of(tokenizer, pattern=pattern).missing_ends()
        return self.add_bos_eos(bos, eos, target_column) if {bos, eos} != {None} else self

    def __add__(self, other: "CheckpointableDataset") -> "CheckpointableDataset":  # type: ignore[override]
        return concat_datasets([self, other])


def concat_datasets(sources: Sequence[CheckpointableDataset]) -> CheckpointableDataset:
    """Datasets one behind the other."""
    require(bool(sources), "sources", "one dataset or more", "none")
    told = ", ".join(source.described for source in sources)
    return CheckpointableDataset(partial(concatenated, sources=tuple(sources)), f"concat({told})")


def interleave_datasets(
    sources: Sequence[CheckpointableDataset],
    weights: Sequence[float] | None = None,
    chunk_size: int = 1024,
) -> CheckpointableDataset:
    """Samples of datasets in turns, by weights, until one that has its turn is at its end.

    Args:
        sources: the datasets.
        weights: how often each has its turn; by default alike.
        chunk_size: turns after which they begin anew.
    """
    given = [1.0] * len(sources) if weights is None else list(weights)
    each = [real for one in given if (real := plain_real(one)) is not None]
    cycle = whole(1, chunk_size=chunk_size)
    fits = len(each) == len(given) == len(sources) > 0 and min(each) >= 0 and sum(each) > 0
    require(fits, "weights", "a number that is not negative for each dataset", given)
    told = ", ".join(source.described for source in sources)
    opener = partial(interleaved, sources=tuple(sources), weights=tuple(each), cycle=cycle)
    return CheckpointableDataset(opener, f"interleave({told}; {each}, {cycle})")


def _opened(
    opening: Opening,
    state: State | None,
    *,
    source: CheckpointableDataset,
    flow: Callable[..., Flow],
    asks: Asks,
    settings: Mapping[str, Any],
) -> Flow:
    return flow(Input(source, asks(opening), state), state, **settings)


def _described(step: Callable[..., Any], settings: Mapping[str, Any]) -> str:
    """A step by its name and its settings, of which functions have no lasting name."""
    told = [
        ", ".join(one) if isinstance(one, tuple) else str(one)
        for one in settings.values()
        if not callable(one)
    ]
    return f"{step.__name__}({', '.join(told)})"


def _same(opening: Opening) -> Opening:
    """A step that hands all columns on asks for what it is asked for."""
    return opening


def _keeps(opening: Opening, *, name: str) -> Opening:
    """A step that changes one column asks for it alone, where nothing else is asked for."""
    return opening if opening.column == name else opening.asking()


def _asks(names: Sequence[str]) -> Asks:
    """A step of some columns asks for them."""
    return partial(Opening.asking, column=names[0] if len(names) == 1 else None)


def names_of(columns: Sequence[str]) -> tuple[str, ...]:
    """Names of columns; of a single one too.

    Raises:
        UsageError: there are none.
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    require(bool(names), "target_columns", "one name or more", "none")
    return names


def whole(least: int | None = None, **named: Any) -> int:
    """A whole number, given by its name, as a plain one.

    Raises:
        UsageError: it is none, or too low.
    """
    ((name, value),) = named.items()
    found, bound = plain_integer(value), "" if least is None else f"{least} or more"
    if found is None:
        raise UsageError(f"`{name}` must be a whole number{bound and ', ' + bound}, got {value!r}.")
    require(least is None or found >= least, name, bound, found)
    return found


def require(fits: bool, name: str, allowed: str, got: Any) -> None:
    """Refuse a value that is not allowed.

    Raises:
        UsageError: naming it.
    """
    if not fits:
        raise UsageError(f"`{name}` must be {allowed}, got {got}.")
