"""The speed of each tokenizer in a folder: its engine alone, a whole worker, the reference.

python -m benchmarks.tokenizers TOKENIZERS TEXTS [--beside NAME] [--megabytes 4]

Figures are MB of text per second of processor time of one core, which other load hardly disturbs;
the engine has its safeguards. Each tokenizer works in a process of its own, on the same texts;
engine and worker get different texts, after others to warm up. A text is Latin unless a fifth or
more of its bytes are beyond ASCII.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import common
from streaming_ext.base.errors import UsageError
from streaming_ext.format.spec import TokenizerIdentity
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.engine import Engine, choose_engine, in_words
from streaming_ext.text.tokenizer.json_file import one_thread_each
from streaming_ext.text.tokenizer.load import load_tokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.split_writer import Memories
from tasks.core.config import ShardConfig
from tasks.core.workers.tokenize_part import TokenizeJob, tokenize_part

SCRIPTS = ("Latin", "other")
COLUMNS = ("engine", "worker", "reference")
SUFFIXES = {".json", ".model", ".tiktoken"}
_LEAST_OTHER = 0.2  # of the bytes
_REFERENCE_CHARACTERS = 500_000


def texts_in(folder: Path, size: int) -> dict[str, list[str]]:
    """Return texts of each script, up to 2 * `size` bytes, evenly from all files of a folder."""
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


def measure(path: Path, texts: dict[str, list[str]]) -> dict[str, Any]:
    """Return facts about a tokenizer, and its rates for each script."""
    pa.set_cpu_count(1)
    facts: dict[str, Any] = {"name": path.parent.name}
    with one_thread_each(), tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        try:
            tokenizer = load_tokenizer(str(path))
            engine = choose_engine(tokenizer, engine="auto")
        except UsageError as error:
            return facts | {"words": str(error)}
        facts |= {
            "words": in_words(engine),
            "start": time.process_time() - began,
            "end": tokenizer.eot_token,
            "beginning": tokenizer.usual_bos or "",
        }
        work = _worker(tokenizer, engine, Path(folder))
        for script, some in texts.items():
            work(some[::2])  # to warm up
            array = pa.array(some[1::4], pa.large_string())
            few = some[1::4]
            while sum(map(len, few)) > _REFERENCE_CHARACTERS:
                few = few[::2]
            facts[script] = [
                _rate(some[1::4], partial(engine.encode, array)),
                work(some[3::4]),
                _rate(few, partial(list, map(tokenizer.encode, few))),
            ]
    return facts


def _worker(tokenizer: Tokenizer, engine: Engine, folder: Path) -> Callable[[list[str]], float]:
    """Return a function that measures a whole worker's rate on some texts."""
    file, memories = folder / "x.parquet", Memories()
    config = ShardConfig(sources=(str(file),), output=str(folder), tokenizer=tokenizer.name)
    spec = config.spec(TokenizerIdentity.model_validate(tokenizer.description()))

    def work(texts: list[str]) -> float:
        pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), file)
        source = SourceFile(url=str(file), size=file.stat().st_size)
        job = TokenizeJob(
            part=Part.whole(0, source),
            scratch=folder / "scratch",
            tokenizer_folder=folder,
            engine="auto",
            spec=spec,
        )
        return _rate(texts, partial(tokenize_part, job, tokenizer, engine, memories=memories))

    return work


def _rate(texts: list[str], work: Callable[[], object]) -> float:
    """Measure some work in MB of these texts per second of processor time."""
    began = time.process_time()
    work()
    return sum(len(text.encode()) for text in texts) / 1e6 / (time.process_time() - began)


def main() -> None:
    """Print a table of rates, and their ratios to one tokenizer's."""
    parser = common.parser(__doc__, megabytes=4.0)
    parser.add_argument("tokenizers", type=Path, help="a folder for each")
    parser.add_argument("texts", type=Path, help="a folder of Parquet files")
    parser.add_argument("--beside", default="llama3_1", help="the tokenizer of the ratios")
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
    working = [each for each in found if "start" in each]
    beside = next((each for each in working if each["name"] == args.beside), working[0])
    heads = [f"{script}: {column}" for script in texts for column in COLUMNS]
    rows = []
    for each in found:
        pairs = [
            pair
            for script in texts
            for pair in zip(each.get(script, ()), beside[script], strict=False)
        ]
        cells = [f"{rate:.1f} ({rate / other:.2f})" for rate, other in pairs]
        rows.append([each["name"], *(cells or [""] * len(heads)), each["words"]])
    print(f"\nMB/s of a core, and beside {beside['name']}:\n")
    print(common.table(["tokenizer", *heads, "works with"], rows))
    common.save(args.result, found=found)


if __name__ == "__main__":
    main()
