"""`CheckpointableDataset`: a chain of steps from samples to batches, resumed after any sample."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from torch.utils.data import IterableDataset, default_collate

import streaming_ext.transforms.sources as of_sources
import streaming_ext.transforms.steps as of_steps
from streaming_ext.base.errors import UsageError
from streaming_ext.base.kinds import MOST, count, flag, plain_real
from streaming_ext.format.spec import FormatName, OnBadDocument, ReadOptions
from streaming_ext.training.workers import Sendable, end_without_hooks, this_worker
from streaming_ext.transforms.block import Block, Sample
from streaming_ext.transforms.flow import CheckpointableIterator, Open, Subset
from streaming_ext.transforms.functions import (
    CONSUMER,
    Crew,
    ExecutorType,
    Function,
    applied,
    of_samples,
)


class CheckpointableDataset(Sendable, IterableDataset):  # type: ignore[type-arg]
    """Samples, each a dictionary. Each step returns another dataset.

    The workers of a DataLoader have different samples: those of the source are dealt out.
    """

    def __init__(self, open_: Open, described: str) -> None:
        """Use `from_files`, `from_sequence` or `from_iterable` instead.

        Args:
            open_: opens a flow, from a state on.
            described: the steps, by which a state recognizes its chain.
        """
        self.open, self.described = open_, described

    def __iter__(self) -> CheckpointableIterator:
        end_without_hooks()  # in a worker of torch's own loader
        return self.iter()

    def iter(self, state_dict: Mapping[str, Any] | None = None) -> CheckpointableIterator:
        """A pass, which resumes from `state_dict` if given; the state is not changed.

        Raises:
            ConfigMismatchError: the state is of another chain, or of another number of workers.
        """
        end_without_hooks()
        return self.iter_subset(this_worker(), state_dict)

    def iter_subset(
        self, subset: Subset, state_dict: Mapping[str, Any] | None = None
    ) -> CheckpointableIterator:
        """The pass of one worker: its number, and how many workers there are."""
        return CheckpointableIterator(self, subset, state_dict)

    def _then(self, described: str, flow: Open, **settings: Any) -> "CheckpointableDataset":
        """The chain with one more step: a flow of this source, from a state on."""
        open_ = partial(flow, source=self.open, **settings)
        return CheckpointableDataset(open_, f"{self.described} > {described}")

    def _function(
        self, name: str, function: Callable[..., Block], crew: Crew = CONSUMER, **settings: Any
    ) -> "CheckpointableDataset":
        """The chain with a function of each block."""
        of_block = partial(function, **settings)
        return self._then(name, applied, function=of_block, crew=crew, name=name)

    @staticmethod
    def from_sequence(
        sequence: Sequence[Sample],
        repeat: bool = False,
        shuffle: bool = False,
        shuffle_seed: int = 42,
    ) -> "CheckpointableDataset":
        """Samples by their number; in another order each epoch if `shuffle`."""
        shuffle_seed = count("shuffle_seed", shuffle_seed, least=-MOST)
        seed = shuffle_seed if flag("shuffle", shuffle) else None
        described = f"from_sequence({len(sequence)}, {seed}"
        return _source(
            described, repeat, of_sources.one_pass, samples=sequence, numbered=True, seed=seed
        )

    @staticmethod
    def from_iterable(iterable: Iterable[Sample], repeat: bool = False) -> "CheckpointableDataset":
        """Samples of an iterable that yields the same ones each time; a resume skips."""
        return _source("from_iterable(", repeat, of_sources.one_pass, samples=iterable)

    @staticmethod
    def from_files(  # noqa: PLR0917 - as its users call it
        urls: str | Sequence[str],
        repeat: bool = False,
        shuffle_shards: bool = False,
        format: FormatName | Literal["auto"] = "auto",  # noqa: A002 - the name that users know
        n_active_shards: int = 10,
        n_standby_shards: int = 2,
        seed: int = 42,
        on_bad_document: OnBadDocument = "fail",
    ) -> "CheckpointableDataset":
        """Samples of files: of several files in turns.

        Args:
            urls: files, folders, glob and brace patterns, on disk or hf://, s3://, gs://, az://,
                https://; all that `shardmill shard` takes.
            repeat: whether another epoch follows.
            shuffle_shards: whether files come in another order each epoch.
            format: of the files; "auto" for the one that each file's name says.
            n_active_shards: files that are read at once.
            n_standby_shards: files whose beginning is fetched before their turn comes.
            seed: of the order of files.
            on_bad_document: whether a record that cannot be read is an error or left out.

        Raises:
            UsageError: there are no such files.
            StorageError: a server refuses, or does not answer.
        """
        from streaming_ext.text.listing import list_sources
        from streaming_ext.transforms.files import files_pass, fingerprint

        seed = count("seed", seed, least=-MOST)
        order = seed if flag("shuffle_shards", shuffle_shards) else None
        active = count("n_active_shards", n_active_shards, least=1)
        known = None if format == "auto" else format
        patterns = [urls] if isinstance(urls, str) else [*map(str, urls)]
        files = list_sources(patterns, any_name=known is not None)
        if not files:
            raise UsageError("from_files() needs at least one file.")
        described = f"{fingerprint(files)}, {order}, {active}, {format}, {on_bad_document}"
        return _source(
            f"from_files(files {described}",
            repeat,
            files_pass,
            sources=files,
            options=ReadOptions(
                columns=("text",), source_format=known, on_bad_document=on_bad_document
            ),
            seed=order,
            active=active,
            standby=count("n_standby_shards", n_standby_shards, least=0),
        )

    def map(self, fn: Function) -> "CheckpointableDataset":
        """`fn(sample)` in place of each sample."""
        return self._of_samples("map", fn)

    def filter(self, fn: Function) -> "CheckpointableDataset":
        """The samples for which `fn(sample)` is true."""
        return self._of_samples("filter", fn)

    def filter_map(self, fn: Function) -> "CheckpointableDataset":
        """`fn(sample)` in place of each sample, if it is not None."""
        return self._of_samples("filter_map", fn)

    def parallel_map(self, fn: Function, *workers: Any, **named: Any) -> "CheckpointableDataset":
        """`map` by workers; see `parallel_filter_map`."""
        return self._of_samples("map", fn, Crew.of(*workers, **named))

    def parallel_filter(self, fn: Function, *workers: Any, **named: Any) -> "CheckpointableDataset":
        """`filter` by workers; see `parallel_filter_map`."""
        return self._of_samples("filter", fn, Crew.of(*workers, **named))

    def parallel_filter_map(
        self, fn: Function, *workers: Any, **named: Any
    ) -> "CheckpointableDataset":
        """`filter_map` by workers, in the order of the samples.

        Args:
            fn: of a sample; None leaves it out.
            workers, named: `max_workers`; by default one a core. `prefetch_factor`: samples ahead,
                a worker (10). `ordered`: False lets workers go on far beyond a slow sample (True).
                `executor_type`: "process" (the default) or "thread".
        """
        return self._of_samples("filter_map", fn, Crew.of(*workers, **named))

    def _of_samples(
        self, kind: str, fn: Function, crew: Crew = CONSUMER
    ) -> "CheckpointableDataset":
        name = f"{kind}({getattr(fn, '__name__', type(fn).__name__)})"
        return self._function(name, of_samples, crew, made_by=fn, kind=kind)

    def enumerate(self, count_column: str = "step") -> "CheckpointableDataset":
        """Samples with their number in a column."""
        return self._then(f"enumerate({count_column})", of_steps.enumerated, column=count_column)

    def take(self, max_count: int) -> "CheckpointableDataset":
        """The first `max_count` samples."""
        max_count = count("max_count", max_count, least=0)
        return self._then(f"take({max_count})", of_steps.take, count=max_count)

    def stride(self, interval: int, offset: int) -> "CheckpointableDataset":
        """One sample of each interval: interval 3 and offset 1 give the samples 1, 4, 7, ..."""
        interval = count("interval", interval, least=1)
        offset = count("offset", offset, least=0, most=interval - 1)
        described = f"stride({interval}, {offset})"
        return self._then(described, of_steps.stride, interval=interval, offset=offset)

    def shuffle(self, buffer_size: int, seed: int = 42) -> "CheckpointableDataset":
        """Samples out of a buffer, a random one each time, as in tf.data and webdataset."""
        slots = count("buffer_size", buffer_size, least=1)
        seed = count("seed", seed, least=-MOST)
        return self._then(f"shuffle({slots}, {seed})", of_steps.shuffle, slots=slots, seed=seed)

    def batch(
        self, batch_size: int, collate_fn: of_steps.Collate | None = None, drop_last: bool = False
    ) -> "CheckpointableDataset":
        """Samples in groups, joined by torch's `default_collate` or by `collate_fn`."""
        size = count("batch_size", batch_size, least=1)
        drop_last = flag("drop_last", drop_last)
        collate = collate_fn or default_collate
        described = f"batch({size}, {drop_last})"
        return self._then(
            described, of_steps.batch, size=size, drop_last=drop_last, collate=collate
        )

    def repeat(self, times: int | None = None) -> "CheckpointableDataset":
        """The same samples again and again, forever or `times` times."""
        times = count("times", times, least=1, optional=True)
        return self._then(f"repeat({times})", of_sources.repeat, times=times, dealt=False)

    def cache(self) -> "CheckpointableDataset":
        """Keep the samples of the first whole pass in memory, for later passes."""
        return self._then("cache", of_sources.cache, kept={})

    def chunk(
        self,
        chunk_length: int,
        target_columns: Sequence[str] = ("input_ids",),
        drop_remainder: bool = True,
    ) -> "CheckpointableDataset":
        """Rows of `chunk_length` tokens of each sample alone; a shorter rest is left out."""
        length, names = count("chunk_length", chunk_length, least=1), names_of(target_columns)
        drop_rest = flag("drop_remainder", drop_remainder)
        name = f"chunk({length}, {names}, {drop_rest})"
        return self._function(name, of_steps.chunk, length=length, names=names, drop_rest=drop_rest)

    def concat_chunk(
        self, chunk_length: int, target_columns: Sequence[str] = ("input_ids",)
    ) -> "CheckpointableDataset":
        """Rows of `chunk_length` tokens of all samples end to end."""
        return self._rows("concat_chunk", of_steps.concat_chunk, chunk_length, target_columns)

    def pack_chunk(
        self, chunk_length: int, target_columns: Sequence[str], discard_long_samples: bool = False
    ) -> "CheckpointableDataset":
        """Rows of at most `chunk_length` tokens, of whole samples; longer ones are cut."""
        discard = flag("discard_long_samples", discard_long_samples)
        return self._rows("pack_chunk", of_steps.pack_chunk, chunk_length, target_columns, discard)

    def _rows(
        self, kind: str, step: Open, length: int, columns: Sequence[str], discard: bool = False
    ) -> "CheckpointableDataset":
        """Rows of the samples that have tokens, and not too many."""
        length, names = count("chunk_length", length, least=1), names_of(columns)
        longest = length if discard else MOST
        name = f"{kind}({length}, {names}, {discard})"
        usable = self._function(name, of_steps.filled, names=names, longest=longest)
        return usable._then("rows", step, length=length, names=names)

    def pad(self, pad_values: Mapping[str, int], chunk_length: int) -> "CheckpointableDataset":
        """Columns filled up to one length, each with its value."""
        values = {name: count(name, value, least=-MOST) for name, value in pad_values.items()}
        length = count("chunk_length", chunk_length, least=1)
        return self._function(
            f"pad({values}, {length})", of_steps.pad, length=length, values=values
        )

    def add_bos_eos(
        self, bos_token_id: int | None, eos_token_id: int | None, target_column: str = "input_ids"
    ) -> "CheckpointableDataset":
        """A token before and one after those of each sample."""
        bos = count("bos_token_id", bos_token_id, least=0, optional=True)
        eos = count("eos_token_id", eos_token_id, least=0, optional=True)
        name = f"add_bos_eos({bos}, {eos}, {target_column})"
        return self._function(name, of_steps.add_bos_eos, bos=bos, eos=eos, column=target_column)

    def sft(
        self,
        tokenizer: Any,
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
            UsageError: the template does not say which tokens are the assistant's.
        """
        from streaming_ext.transforms.sft import labelling

        function, known = labelling(tokenizer, chat_template, messages, prompt, completion)
        crew = Crew(workers=count("max_workers", max_workers, least=1))
        return self._function(f"sft({known})", function, crew)

    def tokenize(  # noqa: PLR0917 - as its users call it
        self,
        tokenizer: Any,
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
            tokenizer_kwargs: for each call of one of transformers.
            target_column: holds the texts; None is an empty one.
            parallel: whether threads in the background do the work.
            max_workers: how many; None for one a core.
            prefetch_factor, ordered, executor_type: checked, and without effect: threads work a few
                blocks ahead.
            pattern: of a .tiktoken file, see `shardmill shard`.
        """
        from streaming_ext.transforms.tokenizers import tokenizing

        workers = Crew.of(max_workers, prefetch_factor, ordered, executor_type).workers
        function, known = tokenizing(tokenizer, pattern, tokenizer_kwargs or {}, target_column)
        crew = Crew(workers=workers) if parallel else CONSUMER
        return self._function(f"tokenize({known}, {target_column})", function, crew)

    def ensure_bos_eos(
        self,
        tokenizer: Any,
        target_column: str = "input_ids",
        pattern: str | None = None,
    ) -> "CheckpointableDataset":
        """The tokenizer's first and last token around each sample, if it does not add them."""
        from streaming_ext.transforms.tokenizers import missing_ends

        bos, eos = missing_ends(tokenizer, pattern)
        return self.add_bos_eos(bos, eos, target_column) if {bos, eos} != {None} else self

    def __add__(self, other: "CheckpointableDataset") -> "CheckpointableDataset":  # type: ignore[override]
        return concat_datasets([self, other])


def _source(described: str, repeat: bool, open_: Open, **settings: Any) -> CheckpointableDataset:
    open_pass, repeat = partial(open_, **settings), flag("repeat", repeat)
    if repeat:
        open_pass = partial(of_sources.repeat, source=open_pass)
    return CheckpointableDataset(open_pass, f"{described}, {repeat})")


def concat_datasets(sources: Sequence[CheckpointableDataset]) -> CheckpointableDataset:
    """Datasets one after another."""
    if not sources:
        raise UsageError("concat_datasets() needs at least one dataset.")
    return _joined(of_sources.concatenate, sources)


def interleave_datasets(
    sources: Sequence[CheckpointableDataset],
    weights: Sequence[float] | None = None,
    chunk_size: int = 1024,
) -> CheckpointableDataset:
    """Samples of datasets in turns, by weights, until one that has its turn is at its end.

    Args:
        sources: the datasets.
        weights: how often each has its turn; equal by default.
        chunk_size: turns after which they start again.
    """
    given = [1.0] * len(sources) if weights is None else list(weights)
    each = [real for one in given if (real := plain_real(one)) is not None]
    cycle = count("chunk_size", chunk_size, least=1)
    if not len(each) == len(given) == len(sources) > 0 or min(each) < 0 or sum(each) <= 0:
        raise UsageError(f"`weights` must be a number of at least 0 for each dataset, got {given}.")
    return _joined(of_sources.interleave, sources, weights=each, cycle=cycle)


def _joined(
    flow: Open, sources: Sequence[CheckpointableDataset], **settings: Any
) -> CheckpointableDataset:
    """One dataset of several."""
    open_ = partial(flow, sources=[source.open for source in sources], **settings)
    names = ", ".join(source.described for source in sources)
    return CheckpointableDataset(open_, f"{flow.__name__}({names}; {settings})")


def names_of(columns: Sequence[str]) -> tuple[str, ...]:
    """Names of columns, as a sequence or a single one.

    Raises:
        UsageError: there are none.
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names:
        raise UsageError("`target_columns` must be one name or more, got none.")
    return names
