"""How fast each source format goes from file to packed tokens, in one worker, beside Parquet.

python -m benchmarks.sharding.source_formats [MEGABYTES] [TOKENIZER]

Wall and CPU seconds of one process; for packed files also the rate of the decompressor alone, which
bounds them. Rounds alternate, the best of each counts.
"""

import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.text.documents.files import CODECS, LocalBytes, Stream
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.engine import Engine, choose_engine
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.split_writer import Memories
from tasks.core.config import ShardConfig
from tasks.core.synthetic import make_documents, train_vocabulary
from tasks.core.workers.tokenize_part import TokenizeJob, tokenize_part
from tests.streaming_ext.text.packed import write_documents

NAMES = (
    "x.parquet",
    "x.jsonl",
    "x.jsonl.gz",
    "x.jsonl.zst",
    "x.jsonl.lz4",
    "x.json",
    "x.arrow",
    "x.cbor",
    "x.tar",
    "x.avro",
    "x.csv",
)
ROUNDS = 3
ROWS = 1000


def write(folder: Path, texts: list[str]) -> None:
    """The same documents in each format; tables in groups and batches of 1,000 rows."""
    table = pa.table({"id": range(len(texts)), "text": texts})
    pq.write_table(table, folder / "x.parquet", row_group_size=ROWS, compression="zstd")
    with pa.ipc.new_stream(folder / "x.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=ROWS)
    for name in NAMES:
        if name not in {"x.parquet", "x.arrow"}:
            write_documents(folder / name, texts)


class Bench:
    """One tokenizer, many files."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        tokenizer.save(folder / "tokenizer")
        self.engine: Engine = choose_engine(tokenizer, engine="auto")
        self.spec: DatasetSpec = ShardConfig(sources=("x",), output="y", tokenizer="z").spec(
            TokenizerIdentity.model_validate(tokenizer.description())
        )
        self.memories: Memories = {}

    def rates(self, name: str) -> tuple[float, float]:
        """MB of text a second, and a CPU second, from file to packed tokens."""
        file = self.folder / name
        source = SourceFile(url=str(file), size=file.stat().st_size)
        job = TokenizeJob(
            part=Part.whole(0, source),
            engine="auto",
            spec=self.spec,
            scratch=str(self.folder / "scratch"),
            tokenizer_folder=str(self.folder / "tokenizer"),
        )
        began, cpu = time.monotonic(), time.process_time()
        done = tokenize_part(job, self.tokenizer, self.engine, memories=self.memories)
        text = done.counts.text_bytes / 1e6
        return text / (time.monotonic() - began), text / (time.process_time() - cpu)


def unpacking_rate(file: Path, text_bytes: int) -> float:
    """MB of text a second of the decompressor alone."""
    began = time.monotonic()
    with Stream(LocalBytes(file, file.name)) as stream:
        while stream.read(2**22):
            pass
    return text_bytes / 1e6 / (time.monotonic() - began)


def main() -> None:
    """Print the rates and their share of Parquet's."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    pa.set_cpu_count(1)
    some = make_documents(2000, seed=1)
    text_bytes = sum(len(text.encode()) for text in some)
    copies = size * 10**6 // text_bytes + 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, some * copies)
        ranks = Path(sys.argv[2]) if len(sys.argv) > 2 else folder / "trained.tiktoken"
        if len(sys.argv) <= 2:
            train_vocabulary(some, 2000, ranks)
        bench = Bench(folder, load_tokenizer(str(ranks), pattern="gpt2"))
        best = dict.fromkeys(NAMES, (0.0, 0.0))
        unpacking = dict.fromkeys(NAMES, 0.0)
        for _ in range(ROUNDS):
            for file in NAMES:
                best[file] = tuple(map(max, best[file], bench.rates(file)))  # type: ignore[assignment]
                if file.endswith(tuple(CODECS)):
                    rate = unpacking_rate(folder / file, text_bytes * copies)
                    unpacking[file] = max(unpacking[file], rate)
        for file, (wall, cpu) in best.items():
            bound = min(best["x.jsonl"][0], unpacking[file])
            also = f"  unpacking alone {unpacking[file]:6.1f}" if unpacking[file] else ""
            also += f", {wall / bound:.2f} of what bounds it" if unpacking[file] else ""
            print(
                f"{file:12} {wall:6.1f} MB/s  {wall / best['x.parquet'][0]:.2f} of Parquet  "
                f"{cpu:6.1f} MB a CPU second{also}"
            )


if __name__ == "__main__":
    main()
