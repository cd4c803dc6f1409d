"""How fast each source format goes from file to packed tokens, in one process, beside Parquet.

python -m benchmarks.source_formats [MEGABYTES]
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from streaming_ext.dataset.spec import TokenizerIdentity
from streaming_ext.text.documents.compression import pack
from streaming_ext.text.documents.formats import format_of
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.engine import choose_engine
from streaming_ext.text.tokenizer.prepared import read_unsafe_code_points, save_tokenizer
from streaming_ext.text.tokenizer.tokenizer import load_tokenizer
from tasks.core.config import ShardConfig
from tasks.core.outputs.part_files import Buffers
from tasks.core.planning.part import Part
from tasks.core.synthetic import make_documents, train_vocabulary
from tasks.core.workers.jobs import TokenizeJob
from tasks.core.workers.tokenize_part import tokenize_part

NAMES = ("x.parquet", "x.jsonl", "x.jsonl.gz", "x.jsonl.zst")
ROUNDS = 3


def write(folder: Path, texts: list[str]) -> None:
    """The same documents in each format."""
    chunked = pa.chunked_array([texts], pa.large_string())
    format_of("x.parquet").write(folder / "x.parquet", chunked, ReadOptions(), codec="zstd")
    lines = "".join(
        json.dumps({"id": row, "text": text}, ensure_ascii=False) + "\n"
        for row, text in enumerate(texts)
    )
    for name, codec in zip(NAMES[1:], ("none", "gzip", "zstd"), strict=True):
        pack(lines.encode(), folder / name, codec)


def main() -> None:
    """Print text in MB a CPU second, the best of some rounds, and the share of Parquet's."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    pa.set_cpu_count(1)
    some = make_documents(2000, seed=1)
    text_bytes = sum(len(text.encode()) for text in some)
    texts = some * (size * 10**6 // text_bytes + 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, texts)
        ranks = folder / "trained.tiktoken"
        train_vocabulary(some, 2000, ranks)
        tokenizer = load_tokenizer(str(ranks), pattern="gpt2")
        save_tokenizer(tokenizer, folder / "tokenizer", engine="auto")
        unsafe = read_unsafe_code_points(folder / "tokenizer")
        engine = choose_engine(tokenizer, engine="auto", unsafe=unsafe)
        spec = ShardConfig(sources=("x",), output="y", tokenizer="z").spec(
            TokenizerIdentity.model_validate(tokenizer.description())
        )
        buffers: Buffers = {}
        best = dict.fromkeys(NAMES, 0.0)
        for _ in range(ROUNDS):
            for file in NAMES:
                source = SourceFile(url=str(folder / file), size=(folder / file).stat().st_size)
                job = TokenizeJob(
                    part=Part.whole(0, source), engine="auto", spec=spec,
                    scratch=str(folder / "scratch"), tokenizer_folder=str(folder / "tokenizer"),
                )  # fmt: skip
                began = time.process_time()
                done = tokenize_part(job, tokenizer, engine, buffers=buffers)
                seconds = time.process_time() - began
                best[file] = max(best[file], done.text_bytes / 1e6 / seconds)
        for file, rate in best.items():
            print(f"{file:12} {rate:6.1f} MB/s  {rate / best['x.parquet']:.2f} of Parquet")


if __name__ == "__main__":
    main()
