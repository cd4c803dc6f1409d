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
from streaming_ext.transforms.chain import CheckpointableIterator
from streaming_ext.transforms.flow import Open, Step
from streaming_ext.transforms.processes import (
    CONSUMER,
    ExecutorType,
    Function,
    StepWorkers,
    of_blocks,
    of_samples,
)


class CheckpointableDataset(Sendable, IterableDataset):  # type: ignore[type-arg]
    """A chain of samples, each a dictionary. Each step returns another dataset.

    The workers of a DataLoader have different samples: the source is split among them.
    """

    def __init__(self, open_: Open, described: str) -> None:
        """Use `from_files`, `from_sequence` or `from_iterable` instead.

        Args:
            open_: a function that opens a flow, from a state on.
            described: the source and the steps as a text, by which a state recognizes its chain.
        """
        self.open, self.described = open_, described

    def __iter__(self) -> CheckpointableIterator:
        return self.iter()

    def iter(self, state_dict: Mapping[str, Any] | None = None) -> CheckpointableIterator:
        """Begin a pass, or resume one from `state_dict`, which is not changed.

        Raises:
            ConfigMismatchError: the state belongs to another chain, or another number of workers.
        """
        end_without_hooks()  # in a worker of torch's own loader
        return CheckpointableIterator(self, this_worker(), state_dict)

    def _then(self, name: str, step: Step, **settings: Any) -> "CheckpointableDataset":
        """Add a step, which a state recognizes by its name and settings."""
        open_ = partial(step, source=self.open, **settings)
        return CheckpointableDataset(open_, f"{self.described} > {_described(name, settings)}")

    def _function(
        self,
        name: str,
        function: Callable[..., Block],
        workers: StepWorkers = CONSUMER,
        **settings: Any,
    ) -> "CheckpointableDataset":
        """Add a function that is applied to blocks; states recognize its name and settings."""
        name, of_block = _described(name, settings), partial(function, **settings)
        return self._then(name, partial(of_blocks, function=of_block, workers=workers, name=name))

    @staticmethod
    def from_sequence(
        sequence: Sequence[Sample],
        repeat: bool = False,
        shuffle: bool = False,
        shuffle_seed: int = 42,
    ) -> "CheckpointableDataset":
        """Read samples by their number; with `shuffle`, in another order each epoch."""
        shuffle_seed = count("shuffle_seed", shuffle_seed, least=-MOST)
        seed = shuffle_seed if flag("shuffle", shuffle) else None
        open_pass = partial(of_sources.one_pass, samples=sequence, numbered=True, seed=seed)
        return _source(f"from_sequence({len(sequence)}, {seed}", open_pass, repeat)

    @staticmethod
    def from_iterable(iterable: Iterable[Sample], repeat: bool = False) -> "CheckpointableDataset":
        """Read an iterable that yields the same samples each time; a resume skips some."""
        return _source("from_iterable(", partial(of_sources.one_pass, samples=iterable), repeat)

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
        """Read the samples of files, several files in turns.

        Args:
            urls: files, folders, glob and brace patterns, on disk or hf://, s3://, gs://, az://,
                https://; everything that `shardmill shard` takes.
            repeat: true if another epoch follows each.
            shuffle_shards: true for another order of the files in each epoch.
            format: the format of the files; "auto" for the format that each file's name says.
            n_active_shards: the number of files that are read at once.
            n_standby_shards: the number of files whose beginning is fetched before their turn.
            seed: the seed of the order of files.
            on_bad_document: "fail" if a record that cannot be read is an error, "skip" to leave it
                out.

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
        open_pass = partial(
            files_pass,
            sources=files,
            options=ReadOptions(
                columns=("text",), source_format=known, on_bad_document=on_bad_document
            ),
            seed=order,
            active=active,
            standby=count("n_standby_shards", n_standby_shards, least=0),
        )
        return _source(f"from_files(files {described}", open_pass, repeat)

    def map(self, fn: Function) -> "CheckpointableDataset":
        """Replace each sample by `fn(sample)`."""
        return self._of_samples("map", fn)

    def filter(self, fn: Function) -> "CheckpointableDataset":
        """Keep the samples for which `fn(sample)` is true."""
        return self._of_samples("filter", fn)

    def filter_map(self, fn: Function) -> "CheckpointableDataset":
        """Replace each sample by `fn(sample)`, or leave it out if that is None."""
        return self._of_samples("filter_map", fn)

    def parallel_map(self, fn: Function, *workers: Any, **named: Any) -> "CheckpointableDataset":
        """Apply `map` in workers; see `parallel_filter_map`."""
        return self._of_samples("map", fn, StepWorkers.of(*workers, **named))

    def parallel_filter(self, fn: Function, *workers: Any, **named: Any) -> "CheckpointableDataset":
        """Apply `filter` in workers; see `parallel_filter_map`."""
        return self._of_samples("filter", fn, StepWorkers.of(*workers, **named))

    def parallel_filter_map(
        self, fn: Function, *workers: Any, **named: Any
    ) -> "CheckpointableDataset":
        """Apply `filter_map` in workers, in the order of the samples.

        Args:
            fn: a function of a sample; it returns None to leave the sample out.
            workers, named: `max_workers`, by default one per core; `prefetch_factor`, samples ahead
                per worker (10); `ordered`, False to let workers go on far beyond a slow sample
                (True); `executor_type`, "process" (the default) or "thread".
        """
        return self._of_samples("filter_map", fn, StepWorkers.of(*workers, **named))

    def _of_samples(
        self, kind: str, fn: Function, workers: StepWorkers = CONSUMER
    ) -> "CheckpointableDataset":
        name = f"{kind}({getattr(fn, '__name__', type(fn).__name__)})"
        return self._function(name, partial(of_samples, function=fn, kind=kind), workers)

    def enumerate(self, count_column: str = "step") -> "CheckpointableDataset":
        """Add a column with the number of each sample."""
        return self._then("enumerate", of_steps.enumerated, column=count_column)

    def take(self, max_count: int) -> "CheckpointableDataset":
        """Keep the first `max_count` samples."""
        return self._then("take", of_steps.take, count=count("max_count", max_count, least=0))

    def stride(self, interval: int, offset: int) -> "CheckpointableDataset":
        """Keep one sample per interval: with interval 3 and offset 1, samples 1, 4, 7, ..."""
        interval = count("interval", interval, least=1)
        offset = count("offset", offset, least=0, most=interval - 1)
        return self._then("stride", of_steps.stride, interval=interval, offset=offset)

    def shuffle(self, buffer_size: int, seed: int = 42) -> "CheckpointableDataset":
        """Take a random sample out of a buffer each time, as tf.data and webdataset do."""
        slots = count("buffer_size", buffer_size, least=1)
        seed = count("seed", seed, least=-MOST)
        return self._then("shuffle", of_steps.shuffle, slots=slots, seed=seed)

    def batch(
        self, batch_size: int, collate_fn: of_steps.Collate | None = None, drop_last: bool = False
    ) -> "CheckpointableDataset":
        """Join samples in groups, with torch's `default_collate` or with `collate_fn`."""
        step = partial(of_steps.batch, collate=collate_fn or default_collate)
        size = count("batch_size", batch_size, least=1)
        return self._then("batch", step, size=size, drop_last=flag("drop_last", drop_last))

    def repeat(self, times: int | None = None) -> "CheckpointableDataset":
        """Yield the same samples again and again, forever or `times` times."""
        times = count("times", times, least=1, optional=True)
        return self._then("repeat", partial(of_sources.repeat, numbered=False), times=times)

    def cache(self) -> "CheckpointableDataset":
        """Keep the samples of the first whole pass in memory, for later passes."""
        return self._then("cache", partial(of_sources.cache, kept={}))

    def chunk(
        self,
        chunk_length: int,
        target_columns: Sequence[str] = ("input_ids",),
        drop_remainder: bool = True,
    ) -> "CheckpointableDataset":
        """Cut each sample into rows of `chunk_length` tokens; a shorter rest is left out."""
        return self._function(
            "chunk",
            of_steps.chunk,
            length=count("chunk_length", chunk_length, least=1),
            names=names_of(target_columns),
            drop_rest=flag("drop_remainder", drop_remainder),
        )

    def concat_chunk(
        self, chunk_length: int, target_columns: Sequence[str] = ("input_ids",)
    ) -> "CheckpointableDataset":
        """Join all samples and cut them into rows of `chunk_length` tokens."""
        return self._rows("concat_chunk", of_steps.concat_chunk, chunk_length, target_columns)

    def pack_chunk(
        self, chunk_length: int, target_columns: Sequence[str], discard_long_samples: bool = False
    ) -> "CheckpointableDataset":
        """Pack whole samples into rows of at most `chunk_length` tokens; longer ones are cut."""
        discard = flag("discard_long_samples", discard_long_samples)
        return self._rows("pack_chunk", of_steps.pack_chunk, chunk_length, target_columns, discard)

    def _rows(
        self, kind: str, step: Step, length: int, columns: Sequence[str], discard: bool = False
    ) -> "CheckpointableDataset":
        """Make rows of the samples that have at least one token, but not too many."""
        length, names = count("chunk_length", length, least=1), names_of(columns)
        usable = partial(of_steps.keep_usable, names=names, longest=length if discard else MOST)
        chain = self._function(f"{kind}({length}, {names}, {discard})", usable)
        return chain._then("rows", partial(step, length=length, names=names))

    def pad(self, pad_values: Mapping[str, int], chunk_length: int) -> "CheckpointableDataset":
        """Fill columns up to one length, each with its own value."""
        values = {name: count(name, value, least=-MOST) for name, value in pad_values.items()}
        length = count("chunk_length", chunk_length, least=1)
        return self._function("pad", of_steps.pad, values=values, length=length)

    def add_bos_eos(
        self, bos_token_id: int | None, eos_token_id: int | None, target_column: str = "input_ids"
    ) -> "CheckpointableDataset":
        """Add one token before and one token after the tokens of each sample."""
        bos = count("bos_token_id", bos_token_id, least=0, optional=True)
        eos = count("eos_token_id", eos_token_id, least=0, optional=True)
        add = of_steps.add_bos_eos
        return self._function("add_bos_eos", add, bos=bos, eos=eos, column=target_column)

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
        """Turn conversations into `input_ids`, `attention_mask`, and `labels` without prompts.

        Args:
            tokenizer: a fast tokenizer of transformers.
            chat_template: a template with `{% generation %}` around what the assistant says; by
                default the tokenizer's own.
            messages: the column of a conversation.
            prompt, completion: columns of texts, instead of conversations.
            max_workers: the number of threads.

        Raises:
            UsageError: the template does not say which tokens are the assistant's.
        """
        from streaming_ext.transforms.sft import label_function

        function, known = label_function(tokenizer, chat_template, messages, prompt, completion)
        workers = StepWorkers(number=count("max_workers", max_workers, least=1))
        return self._function(f"sft({known})", function, workers)

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
        """Turn texts into `input_ids`, one block at a time.

        Args:
            tokenizer: a name, file or Hugging Face repository as `shardmill shard` takes it, or a
                tokenizer of transformers, which then gives its own ids.
            tokenizer_kwargs: the arguments of each call of a tokenizer of transformers.
            target_column: the column of the texts; None counts as an empty text.
            parallel: true if threads in the background do the work.
            max_workers: the number of threads; None for one per core.
            prefetch_factor, ordered, executor_type: checked, but without effect: threads work a few
                blocks ahead.
            pattern: the pattern of a .tiktoken file, see `shardmill shard`.
        """
        from streaming_ext.transforms.tokenizers import tokenize_function

        number = StepWorkers.of(max_workers, prefetch_factor, ordered, executor_type).number
        function, known = tokenize_function(
            tokenizer, pattern, tokenizer_kwargs or {}, target_column
        )
        workers = StepWorkers(number=number) if parallel else CONSUMER
        return self._function(f"tokenize({known}, {target_column})", function, workers)

    def ensure_bos_eos(
        self,
        tokenizer: Any,
        target_column: str = "input_ids",
        pattern: str | None = None,
    ) -> "CheckpointableDataset":
        """Add the tokenizer's first and last token to each sample, unless it adds them itself."""
        from streaming_ext.transforms.tokenizers import missing_ends

        bos, eos = missing_ends(tokenizer, pattern)
        return self.add_bos_eos(bos, eos, target_column) if {bos, eos} != {None} else self

    def __add__(self, other: "CheckpointableDataset") -> "CheckpointableDataset":  # type: ignore[override]
        return concat_datasets([self, other])


def _source(described: str, open_pass: Step, repeat: bool) -> CheckpointableDataset:
    """Make a dataset from a source, which opens a pass by its number."""
    repeat = flag("repeat", repeat)
    open_ = partial(of_sources.repeat, source=open_pass) if repeat else open_pass
    return CheckpointableDataset(open_, f"{described}, {repeat})")


def _described(name: str, settings: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(map(str, settings.values()))})" if settings else name


def concat_datasets(sources: Sequence[CheckpointableDataset]) -> CheckpointableDataset:
    """Join datasets, one after another."""
    if not sources:
        raise UsageError("concat_datasets() needs at least one dataset.")
    return _joined(of_sources.concatenate, sources)


def interleave_datasets(
    sources: Sequence[CheckpointableDataset],
    weights: Sequence[float] | None = None,
    chunk_size: int = 1024,
) -> CheckpointableDataset:
    """Take samples of datasets in turns, by weights, until a dataset has its turn but no sample.

    Args:
        sources: the datasets.
        weights: the relative number of turns of each dataset; equal by default.
        chunk_size: the number of turns after which their order repeats.
    """
    given = [1.0] * len(sources) if weights is None else list(weights)
    each = [real for one in given if (real := plain_real(one)) is not None]
    cycle = count("chunk_size", chunk_size, least=1)
    if not len(each) == len(given) == len(sources) > 0 or min(each) < 0 or sum(each) <= 0:
        raise UsageError(f"`weights` must be a number of at least 0 for each dataset, got {given}.")
    return _joined(of_sources.interleave, sources, weights=each, cycle=cycle)


def _joined(
    step: Step, sources: Sequence[CheckpointableDataset], **settings: Any
) -> CheckpointableDataset:
    """Make one dataset from several."""
    open_ = partial(step, sources=[source.open for source in sources], **settings)
    names = ", ".join(source.described for source in sources)
    return CheckpointableDataset(open_, f"{step.__name__}({names}; {settings})")


def names_of(columns: Sequence[str]) -> tuple[str, ...]:
    """Return names of columns, given as a sequence or as a single name.

    Raises:
        UsageError: there are no names.
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names:
        raise UsageError("`target_columns` must be one name or more, got none.")
    return names
