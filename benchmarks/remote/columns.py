"""Whether fetching only the text column is cheaper than the file: seconds and bytes, by its share.

python -m benchmarks.remote.columns
"""

import os
import random
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text import fetch as fetch_module
from streaming_ext.text.fetch import fetch
from streaming_ext.text.listing import list_sources
from tests.servers.fault_proxy import Faults, fault_proxy
from tests.servers.storage.swift import aws_environment, make_bucket, s3_client, swift_server

SIZE = 120 * 10**6
ROW = 4000  # bytes of text and others
SHARES = (0.9, 0.7, 0.5, 0.2)


def make(path: Path, share: float) -> None:
    rng = random.Random(1)
    blob = rng.randbytes(2**22).hex()
    text = int(ROW * share)
    rows = SIZE // ROW
    places = [rng.randrange(2**22 - ROW) for _ in range(rows)]
    table = pa.table(
        {
            "text": [blob[p : p + text] for p in places],
            "other": [blob[p : p + ROW - text] for p in reversed(places)],
        }
    )
    pq.write_table(table, path, row_group_size=5000, compression="none", use_dictionary=False)


def main() -> None:
    fetch_module.WORTH_IT = 1.0
    with (
        tempfile.TemporaryDirectory() as name,
        swift_server(Path(name) / "swift") as server,
        fault_proxy(server.port) as proxy,
    ):
        folder = Path(name)
        os.environ.update(aws_environment(proxy.url))
        bucket = make_bucket(server.url)
        client = s3_client(server.url)
        for share in SHARES:
            make(folder / "x.parquet", share)
            client.upload_file(str(folder / "x.parquet"), bucket, f"{share}.parquet")
        for label, speed in (("100 MB/s", 100e6), ("unshaped", None)):
            proxy.inflict(Faults(bytes_per_second=speed))
            for share in SHARES:
                (source,) = list_sources([f"s3://{bucket}/{share}.parquet"])
                line = f"{label:9} text {share:.0%} of {source.size / 1e6:.0f} MB:"
                for options in (None, ReadOptions()):
                    began = time.perf_counter()
                    path, fetched = fetch(source, folder / "scratch", options=options)
                    seconds = time.perf_counter() - began
                    path.unlink()
                    line += f"  {'whole' if options is None else 'column'} {seconds:5.2f} s"
                    line += f" {fetched / 1e6:4.0f} MB"
                print(line)
        client.close()


if __name__ == "__main__":
    main()
