"""How fast each tokenizer of a folder is: its engine alone, a whole worker, the reference.

python -m benchmarks.tokenizers TOKENIZERS TEXTS [--beside NAME] [--megabytes 4]

MB of text a second of processor time of one core, which other load hardly disturbs; the engine with
its safeguards. Each tokenizer works in a process of its own, on the same texts; engine and worker
have texts of their own, after others to warm up. A text is Latin unless a fifth of its bytes or
more are beyond ASCII.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import common
from streaming_ext.base.errors import UsageError
from streaming_ext.format.spec import TokenizerIdentity
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.engine import choose_engine, in_words
from streaming_ext.text.tokenizer.json_file import one_thread_each
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.writing.split_writer import Memories
from tasks.core.config import ShardConfig
from tasks.core.workers.tokenize_part import TokenizeJob, tokenize_part

SCRIPTS = ("Latin", "other")
COLUMNS = ("engine", "worker", "reference")
SUFFIXES = {".json", ".model", ".tiktoken"}
_LEAST_OTHER = 0.2  # of the bytes
_REFERENCE_CHARACTERS = 500_000


def texts_in(folder: Path, size: int) -> dict[str, list[str]]:
    """Texts of each script, up to twice as many bytes, evenly from all files of a folder."""
    found: dict[str, list[str]] = {script: [] for script in SCRIPTS}
    left = dict.fromkeys(SCRIPTS, 2 * size)
    files = [
        pq.ParquetFile(path).iter_batches(64, columns=["text"])
        for path in sorted(folder.rglob("*.parquet"))
    ]
    while files and any(each > 0 for each in left.values()):
        for file in tuple(files):
            batch = next(file, None)
            if batch is None:
                files.remove(file)
                continue
            for text in filter(None, batch["text"].to_pylist()):
                data = text.encode()
                is_other = len(data) - sum(map(str.isascii, text)) >= _LEAST_OTHER * len(data)
                script = SCRIPTS[is_other]
                if left[script] > 0:
                    found[script].append(text)
                    left[script] -= len(data)
    return {script: texts for script, texts in found.items() if len(texts) > 3}


class Bench:
    """One tokenizer, in a process that does nothing else."""

    def __init__(self, path: Path, folder: Path) -> None:
        began = time.process_time()
        self.tokenizer = load_tokenizer(str(path))
        self.engine = choose_engine(self.tokenizer, engine="auto")
        self.start = time.process_time() - began
        self._file, self._memories = folder / "x.parquet", Memories()
        config = ShardConfig(sources=(str(path),), output=str(folder), tokenizer=str(path))
        identity = TokenizerIdentity.model_validate(self.tokenizer.description())
        self._spec = config.spec(identity)

    def rates(self, texts: list[str]) -> list[float]:
        """MB/s of each of `COLUMNS`; half of the texts only warm up."""
        self._work(texts[::2])
        few = texts[1::4]
        while sum(map(len, few)) > _REFERENCE_CHARACTERS:
            few = few[::2]
        return [
            self._encode(texts[1::4]),
            self._work(texts[3::4]),
            _rate(few, lambda: [*map(self.tokenizer.encode, few)]),
        ]

    def _encode(self, texts: list[str]) -> float:
        array = pa.array(texts, pa.large_string())
        return _rate(texts, lambda: self.engine.encode(array))

    def _work(self, texts: list[str]) -> float:
        pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), self._file)
        source = SourceFile(url=str(self._file), size=self._file.stat().st_size)
        job = TokenizeJob(
            part=Part.whole(0, source),
            scratch=self._file.with_name("scratch"),
            tokenizer_folder=self._file.parent,
            engine="auto",
            spec=self._spec,
        )
        return _rate(
            texts, lambda: tokenize_part(job, self.tokenizer, self.engine, memories=self._memories)
        )


def _rate(texts: list[str], work: Callable[[], object]) -> float:
    """MB of these texts a second of processor time."""
    began = time.process_time()
    work()
    return sum(len(text.encode()) for text in texts) / 1e6 / (time.process_time() - began)


def measure(path: Path, texts: dict[str, list[str]]) -> dict[str, Any]:
    """What there is to say of a tokenizer, and its rates for each script."""
    pa.set_cpu_count(1)
    with one_thread_each(), tempfile.TemporaryDirectory() as folder:
        try:
            bench = Bench(path, Path(folder))
        except UsageError as error:
            return {"name": path.parent.name, "words": str(error)}
        return {
            "name": path.parent.name,
            "words": in_words(bench.engine),
            "start": bench.start,
            "end": bench.tokenizer.eot_token,
            "beginning": bench.tokenizer.usual_bos or "",
            **{script: bench.rates(some) for script, some in texts.items()},
        }


def main() -> None:
    """Print a table, the rates beside those of one tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizers", type=Path, help="a folder for each")
    parser.add_argument("texts", type=Path, help="a folder of Parquet files")
    parser.add_argument("--megabytes", type=float, default=4.0, help="of each script")
    parser.add_argument("--beside", default="llama3_1", help="the tokenizer of the ratios")
    parser.add_argument("--result", type=Path)
    args = parser.parse_args()
    texts = texts_in(args.texts, int(args.megabytes * 1e6))
    files = sorted(
        path
        for path in args.tokenizers.glob("*/*")
        if path.suffix in SUFFIXES and path.name != "tokenizer_config.json"
    )
    spawn = multiprocessing.get_context("spawn")
    found = []
    for path in files:
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            found.append(pool.submit(measure, path, texts).result())
        print(found[-1], flush=True)
    beside = next((each for each in found if each["name"] == args.beside), found[0])
    rows = []
    for each in found:
        cells = [
            "" if script not in each or script not in beside else f"{mine:.1f} ({mine / other:.2f})"
            for script in texts
            for mine, other in zip(
                each.get(script, [0] * len(COLUMNS)),
                beside.get(script, [1] * len(COLUMNS)),
                strict=True,
            )
        ]
        rows.append([each["name"], *cells, each["words"]])
    heads = [f"{script}: {column}" for script in texts for column in COLUMNS]
    print(f"\nMB/s of a core, and beside {beside['name']}:\n")
    print(common.table(["tokenizer", *heads, "works with"], rows))
    common.save(args.result, found=found)


if __name__ == "__main__":
    main()
