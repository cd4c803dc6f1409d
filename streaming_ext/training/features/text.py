"""`StreamingTextDataset`: text in, the batches of `StreamingTokenDataset` out.

The text is turned once into an ordinary dataset in the cache, which is read like any other dataset.
"""

import glob
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Never

from pydantic import ByteSize, Field, ValidationError

from streaming_ext.base.errors import UsageError
from streaming_ext.base.extras import extras_named
from streaming_ext.base.plain_faults import plain_faults
from streaming_ext.base.threads import cores
from streaming_ext.format.compression import Compression
from streaming_ext.format.schema import content_hash
from streaming_ext.format.spec import DatasetSpec, FormatName, OnBadDocument
from streaming_ext.store import LocalStorage, open_storage
from streaming_ext.store.locations import local_path
from streaming_ext.text.options import TextOptions
from streaming_ext.text.parts import Part
from streaming_ext.text.sources.patterns import is_pattern
from streaming_ext.training.arguments import KINDS, TokenStream
from streaming_ext.training.token_dataset import StreamingTokenDataset

WINDOW = 1 << 14  # sequences of a canonical node that are shuffled together, by default


class StreamedText(TextOptions):
    """The options of `shardmill shard` that decide what is read, and some of its own.

    Attributes:
        holdout_fraction: fraction of the documents in split `holdout`, the others are in `train`.
        holdout_seed: the seed that decides which documents these are.
        shard_size: bytes per shard of the dataset in the cache.
        compression: compression of these shards; `none` to read them in place.
        engine: `auto`, or `reference` to tokenize with the reference alone.
        scan_threads: threads that tokenize; by default one per core, divided among torchrun's
            ranks.
    """

    holdout_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    holdout_seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    shard_size: Annotated[ByteSize, Field(gt=0)] = ByteSize(64 * 2**20)
    compression: str = "zstd:1"
    engine: Literal["auto", "reference"] = "auto"
    scan_threads: Annotated[int | None, Field(gt=0)] = None


TEXT_SETTINGS = StreamedText.model_fields.keys()
_DEFAULTS = {
    name: None if each.is_required() else each.default
    for name, each in StreamedText.model_fields.items()
} | {"local": None}
_DATASET_SETTINGS = [each.name for kind in KINDS for each in fields(kind)]


@dataclass(frozen=True, init=False)
class TextStream(TokenStream):
    """Text that is tokenized once, into the cache: `TextStream(sources=..., tokenizer=...)`.

    Attributes:
        text: the options of the text; each option is an argument of its own.
    """

    text: StreamedText

    def __init__(self, *, text: StreamedText | None = None, **settings: Any) -> None:
        """Take the settings of `TokenStream` and `StreamedText`.

        Raises:
            UsageError: a setting is not allowed.
        """
        given = {} if text is None else text.model_dump(exclude_unset=True)
        given |= {name: settings.pop(name) for name in TEXT_SETTINGS & settings.keys()}
        super().__init__(**settings)
        if self.remote is not None:
            raise UsageError(
                f"A stream of text has sources=, not remote=; got {self.remote!r}. `local` names "
                "the folder of its cache."
            )
        try:
            text = StreamedText.model_validate(given)
            Compression.parse(text.compression)
        except ValidationError as error:
            raise UsageError(
                f"The settings of the text are not allowed: {plain_faults(error)}."
            ) from error
        absolute = {
            "sources": tuple(map(_absolute, text.sources)),
            "tokenizer": _absolute(text.tokenizer),
        }
        object.__setattr__(self, "text", text.model_copy(update=absolute))

    @property
    def url(self) -> str:
        """The location of the text, for messages."""
        return ", ".join(self.text.sources)

    @extras_named()
    def made(
        self, *, split: str | None, sequence_length: int | None, limit: int | None
    ) -> TokenStream:
        """Return the dataset of the text; make it if it does not exist.

        Raises:
            UsageError: a setting is not allowed, or there are no such files.
            SourceError: a file is damaged; the message names it.
            StorageError: a server or the local disk refuses, or the disk is too small.
        """
        from platformdirs import user_cache_path

        from streaming_ext.format.spec import TokenizerIdentity
        from streaming_ext.text.formats import can_be_cut
        from streaming_ext.text.listing import list_sources
        from streaming_ext.text.parts import arrange
        from streaming_ext.text.sources.datasets import require_apart
        from streaming_ext.writing.dataset import DatasetMaker

        if sequence_length is None:
            raise UsageError("Text has no length of its own: give sequence_length=, in tokens.")
        text = self.text
        tokenizer = text.load_tokenizer()
        spec = text.spec_with(
            sequence_length=sequence_length,
            holdout_fraction=text.holdout_fraction,
            holdout_seed=text.holdout_seed,
            shard_size=int(text.shard_size),
            compression=text.compression,
            tokenizer=TokenizerIdentity.model_validate(tokenizer.description()),
        )
        if split not in spec.splits:
            raise UsageError(
                f"Text has the splits {', '.join(spec.splits)}, got {split!r}. Give "
                "holdout_fraction= for a holdout."
            )
        sources = list_sources(
            text.sources,
            max_files=text.max_files,
            hub_config=text.hub_config,
            any_name=text.format is not None,
        )
        parts = arrange(
            sources,
            part_size=int(text.part_size),
            min_part_size=int(text.min_part_size),
            may_be_cut=lambda source: can_be_cut(source, spec.read_options),
        )
        cache = self.local or user_cache_path("shardmill") / "text"
        folder = Path(cache) / f"text-{_identity(spec, parts)}"
        require_apart(str(folder), text.sources)
        # The ranks of torchrun divide the cores and the work among them.
        of_rank = max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        threads = text.scan_threads or min(of_rank, cores())
        DatasetMaker(folder, spec, parts, tokenizer, engine=text.engine, threads=threads).make(
            limit=limit
        )
        return TokenStream(local=folder, split=self.split)


def _absolute(name: str) -> str:
    """Make a file or pattern on disk absolute; return any other name as it is."""
    if "://" in name:
        return name
    path = local_path(name)
    if path.exists():
        return str(path.absolute())
    return str(glob.escape(str(Path.cwd())) / path) if is_pattern(name) else name


def _identity(spec: DatasetSpec, parts: Sequence[Part]) -> str:
    """Return a hash of the specification and the sources, which changes if a file changes."""
    spans = [(*astuple(each.source), each.span) for part in parts for each in part.spans]
    counts = [len(part.spans) for part in parts]
    described = json.dumps([spec.model_dump(mode="json"), counts, spans], sort_keys=True)
    return content_hash(described.encode())[:16]


class StreamingTextDataset(StreamingTokenDataset):
    """Sequences of tokens straight from files of text; order, ranks and resume are exact.

    The first time, all cores and ranks of the machine tokenize the text into an ordinary dataset in
    the cache, which is then read like any other dataset.

    `TextStream` and `StreamingTokenDataset` describe the other arguments. This class does not take
    `remote`, `proportion_by` and `proportions`.

    Args:
        sources: files of text, folders, patterns or URLs: all that `shardmill shard` takes.
        tokenizer: the tokenizer of the text.
        sequence_length: tokens per sequence.
        local: the folder of the cache; by default a folder in the user's cache folder.
        streams: several texts (`TextStream`) and datasets (`TokenStream`), in place of one text.
        shuffle_block_size: as in `StreamingTokenDataset`, but 16,384 unless given.

    Raises:
        UsageError: an argument is not allowed; the message names it and says what is allowed.
        SourceError: a file is damaged; the message names it, and the line or row.
        StorageError: the disk of the cache is too small; the message says how much the tokens
            take.
    """

    def __init__(
        self,
        *,
        sources: str | Sequence[str] | None = None,
        tokenizer: str | None = None,
        sequence_length: int | str,
        local: str | Path | None = None,
        streams: Sequence[TokenStream] | None = None,
        shuffle_block_size: int = WINDOW,
        hub_config: str | None = None,
        eot_token: str | None = None,
        bos_token: str | None = None,
        pattern: str | None = None,
        text_column: str | Sequence[str] = "text",
        text_separator: str = "\\n\\n",
        format: FormatName | None = None,  # noqa: A002
        on_bad_document: OnBadDocument = "fail",
        keep_columns: str | Sequence[str] = (),
        where: str | None = None,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        min_characters: int | None = None,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
        part_size: int | str = 2**30,
        min_part_size: int | str = 0,
        max_files: int | None = None,
        holdout_fraction: float = 0.0,
        holdout_seed: int = 0,
        shard_size: int | str = 64 * 2**20,
        compression: str = "zstd:1",
        engine: Literal["auto", "reference"] = "auto",
        scan_threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        split: str | None = "train",
        batch_size: int | None = None,
        global_batch: int | str | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 9176,
        num_canonical_nodes: int | None = None,
        epoch_size: int | str | None = None,
        drop_last: bool | None = None,
        batching_method: str = "random",
        packing: str | None = None,
        document_multiple: int | None = None,
        exclude: str | Path | None = None,
        max_repeated_ngram: int | None = None,
        token_dtype: str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60.0,
        replication: int | None = None,
        dp_rank: int | None = None,
        dp_world_size: int | None = None,
        device_mesh: Any = None,
        process_group: Any = None,
        cp_rank: int | None = None,
        cp_size: int | None = None,
        cp_layout: str = "balanced",
        node_local: bool | str | Path | None = None,
        extras: str | Collection[str] = (),
        eot_id: int | None = None,
        domain_by: str | None = None,
        **stock: Never,
    ) -> None:
        settings = locals()
        named = {name: settings[name] for name in _DEFAULTS}
        given = {name: value for name, value in named.items() if value != _DEFAULTS[name]}
        if streams is None:
            settings["streams"] = [TextStream(**given)]
        elif given:
            raise UsageError(
                f"Give either streams=[...], or {', '.join(sorted(given))}; a TextStream takes "
                "these too."
            )
        settings |= dict.fromkeys(("local", "remote", "proportion_by", "proportions", "tokenizer"))
        super().__init__(**{name: settings[name] for name in _DATASET_SETTINGS}, **stock)

    def materialize(self, output: str | Path) -> None:
        """Copy the dataset out of the cache; `StreamingTokenDataset` accepts its states.

        If the copy is killed, the next call resumes it.

        Args:
            output: a folder, s3://, gs:// or az://.

        Raises:
            UsageError: there are several texts, or the output holds another dataset.
            StorageError: the output cannot be written to.
        """
        from streaming_ext.writing.dataset import copy_dataset

        (stream, *others), (cache, *_) = self.streams, self.reader.caches
        if others or not isinstance(stream, TextStream) or cache.source.path is None:
            raise UsageError(
                "materialize() copies the dataset of one text: call it on a StreamingTextDataset "
                "of each, and mix the datasets."
            )
        copy_dataset(LocalStorage(cache.source.path), open_storage(str(output)))
