# Made by `python -m tests.flows.functions_stub`.
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from flows.results import Dataset, Export
from tasks.core.check.tokenizer import TokenizerCheck

if TYPE_CHECKING:
    from tasks.core.estimate.estimate import Bench, Estimate

def shard(
    sources: str | Sequence[str],
    *,
    tokenizer: str,
    output: str,
    hub_config: str | None = None,
    eot_token: str | None = None,
    bos_token: str | None = None,
    pattern: str | None = None,
    text_column: str | Sequence[str] = "text",
    text_separator: str = "\\n\\n",
    format: Literal[
        "parquet", "jsonl", "json", "cbor", "arrow", "avro", "csv", "tsv", "webdataset", "text"
    ]
    | None = None,
    on_bad_document: Literal["fail", "skip"] = "fail",
    keep_columns: str | Sequence[str] = (),
    where: str | None = None,
    min_bytes: int | None = None,
    max_bytes: int | None = None,
    min_characters: int | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    part_size: int | str = "1GiB",
    min_part_size: int | str = "0B",
    max_files: int | None = None,
    exclude_texts: str | Sequence[str] = (),
    exclude_column: str | Sequence[str] = "text",
    exclude_ngram: int = 13,
    mark_only: bool = False,
    nodes: int | None = None,
    node_rank: int | None = None,
    check_sources: bool = False,
    sequence_length: int = 2048,
    holdout_fraction: float = 0.001,
    holdout_seed: int = 0,
    shard_size: int | str = "64MiB",
    output_format: str = "mds",
    compression: str | None = None,
    shuffle: Literal["documents"] | None = None,
    shuffle_seed: int | None = None,
    deduplicate: Literal["exact", "normalized", "near"] | None = None,
    near_similarity: float | None = None,
    near_bands: int | None = None,
    near_rows: int | None = None,
    near_ngram: int | None = None,
    workers: int | None = None,
    scratch: str | None = None,
    engine: Literal["auto", "reference"] = "auto",
    executor: str = "here",
    partitions: int = 16,
    quiet: bool = False,
) -> Dataset:
    """Tokenize text files into MDS shards with a holdout split; call it again to resume.

    Args:
        sources: Files, folders, patterns, URLs, or a Hub dataset, ORG/NAME.
        hub_config: Configuration of a Hub dataset, such as sample-10BT.
        tokenizer: Name, Hub repository, tokenizer.json, .model or .tiktoken file.
        eot_token: End-of-text token, if the tokenizer does not name one.
        bos_token: Token that begins each document; default: none.
        pattern: How a rank file splits text: name (gpt2, llama3, qwen2) or regular expression.
        text_column: Column or path (meta.text) of the text; several join.
        text_separator: Text between joined columns; \\n is a new line, \\t a tab.
        format: Format of all files; default: by name.
        on_bad_document: Treatment of an unreadable document.
        keep_columns: Columns to store for each document, such as language,meta.url.
        where: Keep documents if "language == 'en' and score >= 0.65" holds.
        min_bytes: Drop documents of fewer bytes of text.
        max_bytes: Drop documents of more bytes of text.
        min_characters: Drop documents of fewer characters.
        min_tokens: Drop documents of fewer tokens.
        max_tokens: Drop documents of more tokens.
        part_size: Cut larger files into parts of this size, if possible.
        min_part_size: Put small source files into one part until it has this size.
        max_files: Read at most this many source files: the first ones.
        exclude_texts: Drop documents that hold an n-gram of the words of these texts; files or patterns.
        exclude_column: Column of these texts; several join.
        exclude_ngram: Words of an n-gram.
        mark_only: Count such documents, and keep them.
        nodes: Number of nodes that each make their own dataset of some of the sources.
        node_rank: Number of the node to make, from 0; see docs/how-to/node-partitions.md.
        check_sources: Compare each remote file with the hash of its store.
        output: Location of the dataset: a folder, s3://, gs:// or az://.
        sequence_length: Tokens per sample.
        holdout_fraction: Fraction of the documents kept out of training.
        holdout_seed: Seed of the choice of these documents.
        shard_size: Upper bound of an uncompressed shard.
        output_format: Format of shards: mds, webdataset.
        compression: zstd:1, gz:6, bz2 or none; default: zstd:1, for webdataset none.
        shuffle: Put documents in a random order, over all parts.
        shuffle_seed: Seed of this order; default: 0.
        deduplicate: Leave out copies of earlier texts.
        near_similarity: Least similarity of near copies; default: 0.8.
        near_bands: Bands of a sketch, of which near copies have one in common; default: 14.
        near_rows: Bins of a band; default: 8.
        near_ngram: Token ids of an n-gram, by which near copies are compared; default: 5.
        workers: Worker processes per host; default: one per core.
        scratch: Folder for work in progress; default: beside the output, or temporary.
        engine: Fast engine, or the reference.
        executor: here, prefect://FLOW/DEPLOYMENT or dask://HOST:PORT.
        partitions: Runs on a work pool; about four per host.
        quiet: Print only errors."""

def extend(
    dataset: str,
    sources: str | Sequence[str],
    *,
    tokenizer: str | None = None,
    hub_config: str | None = None,
    part_size: int | str = "1GiB",
    min_part_size: int | str = "0B",
    check_sources: bool = False,
    workers: int | None = None,
    scratch: str | None = None,
    engine: Literal["auto", "reference"] = "auto",
    executor: str = "here",
    partitions: int = 16,
    quiet: bool = False,
) -> Dataset:
    """Add source files to a published dataset; call it again to resume.

    Args:
        dataset: The dataset: a folder, s3://, gs:// or az://.
        sources: Sources to add, as for shard; files that it already holds are left out.
        tokenizer: Tokenizer that the dataset was made with, if its own copy is lost.
        hub_config: Configuration of a Hub dataset, such as sample-10BT.
        part_size: Cut larger files into parts of this size, if possible.
        min_part_size: Put small source files into one part until it has this size.
        check_sources: Compare each remote file with the hash of its store.
        workers: Worker processes per host; default: one per core.
        scratch: Folder for work in progress; default: beside the output, or temporary.
        engine: Fast engine, or the reference.
        executor: here, prefect://FLOW/DEPLOYMENT or dask://HOST:PORT.
        partitions: Runs on a work pool; about four per host.
        quiet: Print only errors."""

def import_(
    format: Literal["megatron", "olmo", "nanogpt", "llmc", "modded-nanogpt", "mds"],
    sources: str | Sequence[str],
    *,
    tokenizer: str,
    output: str,
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None = None,
    eot_token: str | None = None,
    bos_token: str | None = None,
    pattern: str | None = None,
    part_size: int | str = "1GiB",
    min_part_size: int | str = "0B",
    check_sources: bool = False,
    sequence_length: int = 2048,
    holdout_fraction: float = 0.001,
    holdout_seed: int = 0,
    shard_size: int | str = "64MiB",
    output_format: str = "mds",
    compression: str | None = None,
    workers: int | None = None,
    scratch: str | None = None,
    quiet: bool = False,
) -> Dataset:
    """Make a dataset of the token files of another trainer; call it again to resume.

    Args:
        format: Format of the files; see docs/how-to/import.md.
        sources: Files, folders, glob or brace patterns, or URLs, but no https://.
        dtype: Type of an id, if the files do not say it.
        tokenizer: Tokenizer that made the ids, named as for shard.
        eot_token: End-of-text token, if the tokenizer does not name one.
        bos_token: Token that begins each document; default: none.
        pattern: How a rank file splits text: name (gpt2, llama3, qwen2) or regular expression.
        part_size: Cut larger files into parts of this size, if possible.
        min_part_size: Put small source files into one part until it has this size.
        check_sources: Compare each remote file with the hash of its store.
        output: Location of the dataset: a folder, s3://, gs:// or az://.
        sequence_length: Tokens per sample.
        holdout_fraction: Fraction of the documents kept out of training.
        holdout_seed: Seed of the choice of these documents.
        shard_size: Upper bound of an uncompressed shard.
        output_format: Format of shards: mds, webdataset.
        compression: zstd:1, gz:6, bz2 or none; default: zstd:1, for webdataset none.
        workers: Worker processes per host; default: one per core.
        scratch: Folder for work in progress; default: beside the output, or temporary.
        quiet: Print only errors."""

def export(
    format: str,
    dataset: str,
    *,
    output: str,
    max_file_size: int | str | None = None,
    rows: Literal["samples", "documents"] = "samples",
    sequence_length: int | None = None,
    provenance: bool = False,
    workers: int | None = None,
    scratch: str | None = None,
    quiet: bool = False,
) -> Export:
    """Write a dataset in the format of another trainer; call it again to resume.

    Args:
        format: Format to write: megatron, nanogpt, llmc, modded-nanogpt, litdata, nanotron, olmo, parquet, webdataset; see docs/how-to/export.md.
        dataset: Folder or URL of a published dataset.
        output: Location of the output: a folder, s3://, gs:// or az://.
        max_file_size: Upper bound of a file; default: the format's usual size.
        rows: Content of a WebDataset sample.
        sequence_length: Tokens per sample of WebDataset; default: that of the dataset.
        provenance: With documents as rows: source and row of each, as JSON beside its ids.
        workers: Worker processes per host; default: one per core.
        scratch: Folder for work in progress; default: beside the output, or temporary.
        quiet: Print only errors."""

def copy(
    dataset: str,
    output: str,
    *,
    workers: int | None = None,
    scratch: str | None = None,
    quiet: bool = False,
) -> Dataset | Export:
    """Copy a dataset or an export to any storage; every byte is compared with its hash.

    Args:
        dataset: Folder or URL of a published dataset or export.
        output: Location of the output: a folder, s3://, gs:// or az://.
        workers: Worker processes per host; default: one per core.
        scratch: Folder for work in progress; default: beside the output, or temporary.
        quiet: Print only errors."""

def merge(
    datasets: str | Sequence[str],
    *,
    output: str,
    repeats: bool = False,
    workers: int | None = None,
    scratch: str | None = None,
    quiet: bool = False,
) -> Dataset:
    """Make one dataset of several, without tokenizing again.

    Args:
        datasets: Folders or URLs of published datasets, in this order.
        output: Location of the output: a folder, s3://, gs:// or az://.
        repeats: Accept datasets of the same source files: texts repeat.
        workers: Worker processes per host; default: one per core.
        scratch: Folder for work in progress; default: beside the output, or temporary.
        quiet: Print only errors."""

def subset(
    dataset: str,
    *,
    output: str,
    where: str | None = None,
    documents: int | None = None,
    tokens: str | None = None,
    seed: int | None = None,
    first: bool = False,
    deduplicate: Literal["near"] | None = None,
    near_similarity: float | None = None,
    near_bands: int | None = None,
    near_rows: int | None = None,
    near_ngram: int | None = None,
    workers: int | None = None,
    scratch: str | None = None,
    quiet: bool = False,
) -> Dataset:
    """Make a dataset of some documents of another.

    Args:
        dataset: Folder or URL of a published dataset.
        output: Location of the output: a folder, s3://, gs:// or az://.
        where: Take documents for which "score >= 3 and tokens < 900" holds.
        documents: Number of documents, over all splits.
        tokens: Number of tokens, such as 10M; whole documents only.
        seed: Seed of the random choice of documents; default: 0.
        first: Take the first documents in order, not random ones.
        deduplicate: Leave out near copies of earlier documents, by their token ids.
        near_similarity: Least similarity of near copies; default: 0.8.
        near_bands: Bands of a sketch, of which near copies have one in common; default: 14.
        near_rows: Bins of a band; default: 8.
        near_ngram: Token ids of an n-gram, by which near copies are compared; default: 5.
        workers: Worker processes per host; default: one per core.
        scratch: Folder for work in progress; default: beside the output, or temporary.
        quiet: Print only errors."""

def annotate(
    dataset: str,
    table: str | None = None,
    *,
    key: str | None = None,
    partial: bool = False,
    exclude_texts: str | Sequence[str] = (),
    exclude_column: str | Sequence[str] = "text",
    exclude_ngram: int = 13,
    workers: int | None = None,
    scratch: str | None = None,
    characters: bool = False,
    quiet: bool = False,
) -> Dataset:
    """Add columns to the documents of a dataset; call it again to resume.

    Args:
        dataset: The dataset: a folder, s3://, gs:// or az://.
        table: Parquet, CSV or JSON Lines file: source, row, and the columns to add.
        key: Column that names a document in both, in place of source and row.
        partial: Accept documents without a row, and rows without a document.
        exclude_texts: In place of a table: count those of these texts that share words with each document.
        exclude_column: Column of these texts; several join.
        exclude_ngram: Words of an n-gram.
        workers: Worker processes per host; default: one per core.
        scratch: Folder for work in progress; default: beside the output, or temporary.
        characters: In place of a table: count the characters of each document.
        quiet: Print only errors."""

def bench(
    tokenizer: str,
    sources: str | Sequence[str],
    *,
    eot_token: str | None = None,
    bos_token: str | None = None,
    pattern: str | None = None,
    hub_config: str | None = None,
    text_column: str | Sequence[str] = "text",
    text_separator: str = "\\n\\n",
    format: Literal[
        "parquet", "jsonl", "json", "cbor", "arrow", "avro", "csv", "tsv", "webdataset", "text"
    ]
    | None = None,
    on_bad_document: Literal["fail", "skip"] = "fail",
    sample_size: int | str = "128MiB",
    sample_files: int = 16,
    sample_seed: int = 0,
    workers: int | None = None,
    scratch: str | None = None,
    quiet: bool = False,
) -> Bench:
    """Measure how this machine tokenizes some files: engine, ids and rate.

    Args:
        tokenizer: Name, Hub repository, tokenizer.json, .model or .tiktoken file.
        sources: Files, folders, patterns, URLs, or a Hub dataset, ORG/NAME.
        eot_token: End-of-text token, if the tokenizer does not name one.
        bos_token: Token that begins each document; default: none.
        pattern: How a rank file splits text: name (gpt2, llama3, qwen2) or regular expression.
        hub_config: Configuration of a Hub dataset, such as sample-10BT.
        text_column: Column or path (meta.text) of the text; several join.
        text_separator: Text between joined columns; \\n is a new line, \\t a tab.
        format: Format of all files; default: by name.
        on_bad_document: Treatment of an unreadable document.
        sample_size: Bytes of text to sample in total.
        sample_files: Number of files to sample.
        sample_seed: Seed for the choice of files and rows.
        workers: Worker processes per host; default: one per core.
        scratch: Folder for work in progress; default: beside the output, or temporary.
        quiet: Print only errors."""

def check_tokenizer(
    dataset: str,
    tokenizer: str,
    *,
    eot_token: str | None = None,
    bos_token: str | None = None,
    pattern: str | None = None,
    quiet: bool = False,
) -> TokenizerCheck:
    """Compare a tokenizer with that of a dataset; a difference raises ConfigMismatchError.

    Args:
        dataset: Folder or URL of a published dataset.
        tokenizer: Name, Hub repository, tokenizer.json, .model or .tiktoken file.
        eot_token: End-of-text token, if the tokenizer does not name one.
        bos_token: Token that begins each document; default: none.
        pattern: How a rank file splits text: name (gpt2, llama3, qwen2) or regular expression.
        quiet: Print only errors."""

def plan(
    sources: str | Sequence[str],
    *,
    tokenizer: str,
    hub_config: str | None = None,
    eot_token: str | None = None,
    bos_token: str | None = None,
    pattern: str | None = None,
    text_column: str | Sequence[str] = "text",
    text_separator: str = "\\n\\n",
    format: Literal[
        "parquet", "jsonl", "json", "cbor", "arrow", "avro", "csv", "tsv", "webdataset", "text"
    ]
    | None = None,
    on_bad_document: Literal["fail", "skip"] = "fail",
    keep_columns: str | Sequence[str] = (),
    where: str | None = None,
    min_bytes: int | None = None,
    max_bytes: int | None = None,
    min_characters: int | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    part_size: int | str = "1GiB",
    min_part_size: int | str = "0B",
    max_files: int | None = None,
    exclude_texts: str | Sequence[str] = (),
    exclude_column: str | Sequence[str] = "text",
    exclude_ngram: int = 13,
    mark_only: bool = False,
    nodes: int | None = None,
    node_rank: int | None = None,
    check_sources: bool = False,
    output: str = ".",
    sequence_length: int = 2048,
    holdout_fraction: float = 0.001,
    holdout_seed: int = 0,
    shard_size: int | str = "64MiB",
    output_format: str = "mds",
    compression: str | None = None,
    shuffle: Literal["documents"] | None = None,
    shuffle_seed: int | None = None,
    deduplicate: Literal["exact", "normalized", "near"] | None = None,
    near_similarity: float | None = None,
    near_bands: int | None = None,
    near_rows: int | None = None,
    near_ngram: int | None = None,
    workers: int | None = None,
    scratch: str | None = None,
    engine: Literal["auto", "reference"] = "auto",
    executor: str = "here",
    partitions: int = 16,
    hosts: int = 1,
    link: float | str | None = None,
    disk: float | str | None = None,
    remote_sources: bool | None = None,
    sample_size: int | str = "128MiB",
    sample_files: int = 16,
    sample_seed: int = 0,
    total_size: int | str | None = None,
    total_files: int | None = None,
    quiet: bool = False,
) -> Estimate:
    """Estimate tokens, disk and time of a run before it runs; no dataset is made.

    Args:
        sources: Files, folders, patterns, URLs, or a Hub dataset, ORG/NAME.
        hub_config: Configuration of a Hub dataset, such as sample-10BT.
        tokenizer: Name, Hub repository, tokenizer.json, .model or .tiktoken file.
        eot_token: End-of-text token, if the tokenizer does not name one.
        bos_token: Token that begins each document; default: none.
        pattern: How a rank file splits text: name (gpt2, llama3, qwen2) or regular expression.
        text_column: Column or path (meta.text) of the text; several join.
        text_separator: Text between joined columns; \\n is a new line, \\t a tab.
        format: Format of all files; default: by name.
        on_bad_document: Treatment of an unreadable document.
        keep_columns: Columns to store for each document, such as language,meta.url.
        where: Keep documents if "language == 'en' and score >= 0.65" holds.
        min_bytes: Drop documents of fewer bytes of text.
        max_bytes: Drop documents of more bytes of text.
        min_characters: Drop documents of fewer characters.
        min_tokens: Drop documents of fewer tokens.
        max_tokens: Drop documents of more tokens.
        part_size: Cut larger files into parts of this size, if possible.
        min_part_size: Put small source files into one part until it has this size.
        max_files: Read at most this many source files: the first ones.
        exclude_texts: Drop documents that hold an n-gram of the words of these texts; files or patterns.
        exclude_column: Column of these texts; several join.
        exclude_ngram: Words of an n-gram.
        mark_only: Count such documents, and keep them.
        nodes: Number of nodes that each make their own dataset of some of the sources.
        node_rank: Number of the node to make, from 0; see docs/how-to/node-partitions.md.
        check_sources: Compare each remote file with the hash of its store.
        output: Planned location of the dataset; uploads use the link.
        sequence_length: Tokens per sample.
        holdout_fraction: Fraction of the documents kept out of training.
        holdout_seed: Seed of the choice of these documents.
        shard_size: Upper bound of an uncompressed shard.
        output_format: Format of shards: mds, webdataset.
        compression: zstd:1, gz:6, bz2 or none; default: zstd:1, for webdataset none.
        shuffle: Put documents in a random order, over all parts.
        shuffle_seed: Seed of this order; default: 0.
        deduplicate: Leave out copies of earlier texts.
        near_similarity: Least similarity of near copies; default: 0.8.
        near_bands: Bands of a sketch, of which near copies have one in common; default: 14.
        near_rows: Bins of a band; default: 8.
        near_ngram: Token ids of an n-gram, by which near copies are compared; default: 5.
        workers: Worker processes per host; default: one per core.
        scratch: Folder for work in progress; default: beside the output, or temporary.
        engine: Fast engine, or the reference.
        executor: here, prefect://FLOW/DEPLOYMENT or dask://HOST:PORT.
        partitions: Runs on a work pool; about four per host.
        hosts: Number of hosts that divide the work.
        link: Network link of each host, as 1Gbit or 500MB; default: 1Gbit if used.
        disk: Write rate of each host's disk; default: as measured here.
        remote_sources: True if the link carries the sources; default: as SOURCES say.
        sample_size: Bytes of text to sample in total.
        sample_files: Number of files to sample.
        sample_seed: Seed for the choice of files and rows.
        total_size: Plan for source files of this total size; SOURCES are an example of them.
        total_files: Number of these files; default: each as large as those of SOURCES.
        quiet: Print only errors."""
