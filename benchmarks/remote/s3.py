"""MB/s to and from S3: this project's storage beside the bare client, on the same server.

    python -m benchmarks.remote.s3 [--megabytes 512]

The server is OpenStack Swift on loopback, one object server on the same machine: it takes most of
the time, so what counts is the difference between the lines.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streaming_ext.store import uploads
from streaming_ext.store.objects import ObjectStorage
from streaming_ext.text.fetch import fetch
from streaming_ext.text.listing import list_sources
from tests.servers.storage.swift import aws_environment, make_bucket, s3_client, swift_server

SHARD = 32 * 2**20
AT_ONCE = 4


def rate(work: Callable[[], object], num_bytes: int) -> str:
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        work()
        best = max(best, num_bytes / 1e6 / (time.perf_counter() - began))
    return f"{best:7.0f} MB/s"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=512)
    count = max(1, parser.parse_args().megabytes * 10**6 // SHARD)
    total = count * SHARD
    data = os.urandom(SHARD)
    with tempfile.TemporaryDirectory() as folder, swift_server(Path(folder) / "swift") as server:
        os.environ.update(aws_environment(server.url))
        shard = Path(folder) / "shard"
        shard.write_bytes(data)
        bucket = make_bucket(server.url)
        client = s3_client(server.url)
        storage = ObjectStorage(f"s3://{bucket}/ours")

        def bare_put() -> None:
            with ThreadPoolExecutor(AT_ONCE) as threads:
                list(
                    threads.map(
                        lambda n: client.put_object(Bucket=bucket, Key=f"bare/{n}", Body=data),
                        range(count),
                    )
                )

        def our_put() -> None:
            with uploads(storage) as put:
                for number in range(count):
                    put(str(number), shard)

        def bare_get() -> None:
            with ThreadPoolExecutor(AT_ONCE) as threads:
                list(
                    threads.map(
                        lambda n: len(
                            client.get_object(Bucket=bucket, Key=f"bare/{n}")["Body"].read()
                        ),
                        range(count),
                    )
                )

        def our_get() -> None:
            with ThreadPoolExecutor(AT_ONCE) as threads:
                list(threads.map(lambda n: len(storage.read(str(n))), range(count)))

        print(f"{count} objects of {SHARD / 1e6:.0f} MB, {AT_ONCE} at once")
        print("put  boto3    ", rate(bare_put, total))
        print("put  shardmill", rate(our_put, total))
        print("get  boto3    ", rate(bare_get, total))
        print("get  shardmill", rate(our_get, total))

        client.put_object(Bucket=bucket, Key="one.parquet", Body=data * 8)
        (source,) = list_sources([f"s3://{bucket}/one.parquet"])
        target = Path(folder) / "one"

        def bare_download() -> None:
            client.download_file(bucket, "one.parquet", str(target))

        def our_download() -> None:
            path, _ = fetch(source, Path(folder) / "scratch")
            path.unlink()

        print(f"one file of {source.size / 1e6:.0f} MB to disk")
        print("file boto3    ", rate(bare_download, source.size))
        print("file shardmill", rate(our_download, source.size))


if __name__ == "__main__":
    main()
