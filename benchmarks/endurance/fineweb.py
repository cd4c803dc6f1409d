"""Source files with the structure of FineWeb-Edu: its folders, names and columns, but small."""

import random
from concurrent.futures import ThreadPoolExecutor
from math import exp, log
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.synthetic import make_documents
from tests.servers.storage.swift import s3_client

FILES = 2410
_WEEKS = {
    2013: "20 48",
    2014: "10 15 23 35 41 42 49 52",
    2015: "06 11 14 18 22 27 32 35 40 48",
    2016: "07 18 22 26 30 36 40 44 50",
    2017: "04 09 13 17 22 26 30 34 39 43 47 51",
    2018: "05 09 13 17 22 26 30 34 39 43 47 51",
    2019: "04 09 13 18 22 26 30 35 39 43 47 51",
    2020: "05 10 16 24 29 34 40 45 50",
    2021: "04 10 17 21 25 31 39 43 49",
    2022: "05 21 27 33 40 49",
    2023: "06 14 23 40 50",
    2024: "10",
}
DUMPS = tuple(f"CC-MAIN-{year}-{week}" for year, weeks in _WEEKS.items() for week in weeks.split())
_FEWEST_A_DUMP = 8
_DOCUMENTS = (1, 60)  # of a file, evenly spread over orders of magnitude
_POOL = 2000  # documents that files are dealt from
_THREADS = 8


def names(files: int) -> list[str]:
    """`data/DUMP/train-00000-of-00014.parquet` and so on: so many, over as many dumps as fit."""
    dumps = DUMPS[: max(1, files // _FEWEST_A_DUMP)]
    found = []
    for number, dump in enumerate(dumps):
        count = files * (number + 1) // len(dumps) - files * number // len(dumps)
        found += [f"data/{dump}/train-{i:05}-of-{count:05}.parquet" for i in range(count)]
    return found


def write_sources(folder: Path, files: int, seed: int) -> int:
    """Write the files; returns their bytes. A function of the arguments alone."""
    rng = random.Random(seed)
    pool = make_documents(_POOL, seed)
    for name in names(files):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        count = round(exp(rng.uniform(*map(log, _DOCUMENTS))))
        table = _table(rng.choices(pool, k=count), path.parent.name, path.stem, rng)
        pq.write_table(table, path, compression="zstd", row_group_size=1000)
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def _table(texts: list[str], dump: str, file: str, rng: random.Random) -> pa.Table:
    scores = [rng.uniform(2.5, 5) for _ in texts]
    where = [f"{dump}/{file}/{row:06}" for row in range(len(texts))]
    return pa.table(
        {
            "text": texts,
            "id": [f"<urn:uuid:{rng.getrandbits(128):032x}>" for _ in texts],
            "dump": [dump] * len(texts),
            "url": [f"https://example.org/{name}" for name in where],
            "file_path": [f"s3://example/crawl-data/{name}.warc.gz" for name in where],
            "language": ["en"] * len(texts),
            "language_score": [rng.uniform(0.65, 1) for _ in texts],
            "token_count": [len(text) // 4 for text in texts],
            "score": scores,
            "int_score": [round(score) for score in scores],
        }
    )


def upload(folder: Path, endpoint: str, bucket: str) -> str:
    """Put the files into a bucket; returns the pattern that names them there."""
    client = s3_client(endpoint)

    def put(file: Path) -> None:
        key = f"fineweb-edu/{file.relative_to(folder).as_posix()}"
        client.put_object(Bucket=bucket, Key=key, Body=file.read_bytes())

    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(put, sorted(folder.rglob("*.parquet"))):
            pass
    client.close()
    return f"s3://{bucket}/fineweb-edu/data/*/*.parquet"
