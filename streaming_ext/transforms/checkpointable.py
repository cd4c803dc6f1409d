"""`CheckpointableDataset`: a chain of steps from samples to batches, resumed at any sample."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import IterableDataset, get_worker_info

from streaming_ext.arguments.kinds import flag
from streaming_ext.transforms.block import Sample
from streaming_ext.transforms.checks import any_whole, require, whole
from streaming_ext.transforms.examples import open_iterable, open_sequence
from streaming_ext.transforms.flow import Flow, Opening, State
from streaming_ext.transforms.iterator import CheckpointableIterator
from streaming_ext.transforms.steps.batching import Collate, open_batched
from streaming_ext.transforms.steps.caching import Shelf, open_cached
from streaming_ext.transforms.steps.counting import (
    open_enumerate,
    open_repeat,
    open_stride,
    open_take,
)
from streaming_ext.transforms.steps.functions import Function, Kind, OfSample, open_function
from streaming_ext.transforms.steps.parallel import Crew, ExecutorType, open_parallel
from streaming_ext.transforms.steps.shuffling import open_shuffled
from streaming_ext.transforms.tokens.rows import RowsOfTokens

if TYPE_CHECKING:
    from streaming_ext.text.documents.options import FormatName
    from streaming_ext.transforms.tokens.tokenizers import AnyTokenizer

Opener = Callable[[Opening, State | None], Flow]


class CheckpointableDataset(RowsOfTokens, IterableDataset):  # type: ignore[type-arg]
    """Samples, each a dictionary, and steps that make others of them; a step changes no dataset.

    In the workers of a DataLoader, each has samples of its own: those of the source are dealt out.
    """

    def __init__(self, opener: Opener, described: str) -> None:
        """Take over how it is opened; `from_files` and its like are how to make one.

        Args:
            opener: makes a pass through it.
            described: its steps, by which a state knows its chain.
        """
        self._opener = opener
        self.described = described

    def open(self, opening: Opening, state: State | None) -> Flow:
        """A pass through it, from the beginning or from a place that a state names."""
        return self._opener(opening, state)

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
        self, told: str, step: Callable[..., Flow], **settings: Any
    ) -> "CheckpointableDataset":
        return CheckpointableDataset(partial(step, self, **settings), f"{self.described} > {told}")

    @staticmethod
    def from_sequence(
        sequence: Sequence[Sample],
        repeat: bool = False,
        shuffle: bool = False,
        shuffle_seed: int = 42,
    ) -> "CheckpointableDataset":
        """Samples by their number, in an order that is another one each epoch if `shuffle`."""
        repeat, shuffle = flag("repeat", repeat), flag("shuffle", shuffle)
        seed = any_whole(shuffle_seed=shuffle_seed) if shuffle else None
        opener = partial(open_sequence, sequence=sequence, repeat=repeat, seed=seed)
        return CheckpointableDataset(opener, f"from_sequence({len(sequence)}, {repeat}, {seed})")

    @staticmethod
    def from_iterable(iterable: Iterable[Sample], repeat: bool = False) -> "CheckpointableDataset":
        """Samples of what gives the same ones whenever it is iterated over; a resume skips."""
        repeat = flag("repeat", repeat)
        return CheckpointableDataset(
            partial(open_iterable, iterable=iterable, repeat=repeat), f"from_iterable({repeat})"
        )

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
        from streaming_ext.transforms.files.mux import Turns, open_files, some_files

        n_active_shards = whole(n_active_shards=n_active_shards, least=1)
        n_standby_shards = whole(n_standby_shards=n_standby_shards, least=0)
        files, options = some_files(urls, format, on_bad_document)
        repeat = flag("repeat", repeat)
        seed_of_order = any_whole(seed=seed) if flag("shuffle_shards", shuffle_shards) else None
        turns = Turns(repeat=repeat, seed=seed_of_order, active=n_active_shards,
                      standby=n_standby_shards)  # fmt: skip
        opener = partial(open_files, files=files, turns=turns, options=options)
        told = f"{repeat}, {seed_of_order}, {n_active_shards}, {format}, {on_bad_document}"
        return CheckpointableDataset(opener, f"from_files({told})")

    def map(self, fn: Function) -> "CheckpointableDataset":
        """`fn(sample)` in place of each sample."""
        return self._of_sample(fn, "map")

    def filter(self, fn: Function) -> "CheckpointableDataset":
        """The samples for which `fn(sample)` is true."""
        return self._of_sample(fn, "filter")

    def filter_map(self, fn: Function) -> "CheckpointableDataset":
        """`fn(sample)` in place of each sample, where it is not None."""
        return self._of_sample(fn, "filter_map")

    def _of_sample(self, fn: Function, kind: Kind) -> "CheckpointableDataset":
        return self._then(kind, open_function, function=OfSample(fn, kind))

    def parallel_map(self, fn: Function, *workers: Any, **named: Any) -> "CheckpointableDataset":
        """`map` by workers; see `parallel_filter_map`."""
        return self._parallel(fn, "map", *workers, **named)

    def parallel_filter(self, fn: Function, *workers: Any, **named: Any) -> "CheckpointableDataset":
        """`filter` by workers; see `parallel_filter_map`."""
        return self._parallel(fn, "filter", *workers, **named)

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
        return self._parallel(fn, "filter_map", *workers, **named)

    def _parallel(  # noqa: PLR0917 - as its users call it
        self, fn: Function, kind: Kind, max_workers: int | None = None, prefetch_factor: int = 10,
        ordered: bool = True, executor_type: ExecutorType = "process",
    ) -> "CheckpointableDataset":  # fmt: skip
        crew = Crew.of(executor_type, max_workers, prefetch_factor, ordered=ordered)
        told = f"parallel_{kind}" + ("" if ordered else f"({crew.unit}, unordered)")
        return self._then(told, open_parallel, function=OfSample(fn, kind), crew=crew)

    def enumerate(self, count_column: str = "step") -> "CheckpointableDataset":
        """Samples with their number in a column."""
        told = f"enumerate({count_column})"
        return self._then(told, open_enumerate, column=count_column)

    def take(self, max_count: int) -> "CheckpointableDataset":
        """The first so many samples."""
        max_count = whole(max_count=max_count, least=0)
        return self._then(f"take({max_count})", open_take, count=max_count)

    def stride(self, interval: int, offset: int) -> "CheckpointableDataset":
        """Every so many-th sample: of interval 3 and offset 1, the samples 1, 4, 7, ..."""
        interval = whole(interval=interval, least=1)
        offset = whole(offset=offset, least=0)
        require(offset=0 <= offset < interval, got=offset, allowed=f"in [0, {interval})")
        return self._then(
            f"stride({interval}, {offset})", open_stride, interval=interval, offset=offset
        )

    def shuffle(self, buffer_size: int, seed: int = 42) -> "CheckpointableDataset":
        """Samples out of a buffer, a random one each time, as tf.data and webdataset do it."""
        buffer_size, seed = whole(buffer_size=buffer_size, least=1), any_whole(seed=seed)
        return self._then(
            f"shuffle({buffer_size}, {seed})", open_shuffled, slots=buffer_size, seed=seed
        )

    def batch(
        self, batch_size: int, collate_fn: Collate | None = None, drop_last: bool = False
    ) -> "CheckpointableDataset":
        """Samples in groups, put together by torch's `default_collate` or by `collate_fn`."""
        batch_size = whole(batch_size=batch_size, least=1)
        drop_last = flag("drop_last", drop_last)
        told = f"batch({batch_size}, {drop_last})"
        settings = {"size": batch_size, "collate": collate_fn, "drop_last": drop_last}
        return self._then(told, open_batched, **settings)

    def repeat(self, times: int | None = None) -> "CheckpointableDataset":
        """The same samples again and again, for ever or so many times."""
        times = None if times is None else whole(times=times, least=1)
        return self._then(f"repeat({times})", open_repeat, times=times)

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
        from streaming_ext.transforms.sft.labelled import labelling, open_labelled

        max_workers = whole(max_workers=max_workers, least=1)
        require(completion=(prompt is None) == (completion is None), got=completion,
                 allowed="given where prompt= is, and only there")  # fmt: skip
        pair = None if prompt is None or completion is None else (prompt, completion)
        function = labelling(tokenizer, chat_template, messages, pair)
        told = f"sft({function.described})"
        return self._then(told, open_labelled, function=function, workers=max_workers)

    def tokenize(  # noqa: PLR0917 - as its users call it
        self, tokenizer: "AnyTokenizer", tokenizer_kwargs: Mapping[str, Any] | None = None,
        target_column: str = "text", parallel: bool = True, max_workers: int | None = 1,
        prefetch_factor: int = 10, ordered: bool = True, executor_type: ExecutorType = "thread",
        *, pattern: str | None = None,
    ) -> "CheckpointableDataset":  # fmt: skip
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
        from streaming_ext.transforms.tokens.tokenize import open_tokenized
        from streaming_ext.transforms.tokens.tokenizers import tokenizer_of

        crew = Crew.of(executor_type, max_workers, prefetch_factor, ordered=ordered)
        known = tokenizer_of(tokenizer, pattern=pattern, settings=tokenizer_kwargs)
        workers = crew.workers if parallel else 0
        told = f"tokenize({known.described}, {target_column}{'' if parallel else ', here'})"
        return self._then(
            told, open_tokenized, tokenizer=known, column=target_column, workers=workers
        )

    def ensure_bos_eos(
        self, tokenizer: "AnyTokenizer", target_column: str = "input_ids",
        pattern: str | None = None,
    ) -> "CheckpointableDataset":  # fmt: skip
        """The tokenizer's first and last token around each sample's, where it adds none itself."""
        from streaming_ext.transforms.tokens.tokenizers import tokenizer_of

        bos, eos = tokenizer_of(tokenizer, pattern=pattern).missing_ends()
        if bos is None and eos is None:
            return self
        return self.add_bos_eos(bos, eos, target_column)

    def cache(self) -> "CheckpointableDataset":
        """The samples of a first pass in memory, for the passes behind it."""
        return self._then("cache", open_cached, shelf=Shelf())

    def __add__(self, other: "CheckpointableDataset") -> "CheckpointableDataset":  # type: ignore[override]
        from streaming_ext.transforms.combined import concat_datasets

        return concat_datasets([self, other])
