"""datatrove's MinHash deduplication of JSON Lines, run by the Python that has it (and xxhash 3.5).

Prints how many documents stay, as JSON.
"""

import json
import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter


def main(lines: str, folder: str, workers: int = 2) -> None:
    """Run the four steps."""
    config = MinhashConfig()
    reader = JsonlReader(lines, recursive=False, glob_pattern="*.jsonl")
    signatures, buckets, removed = (f"{folder}/{name}" for name in ("sigs", "buckets", "removed"))
    steps = [
        ([reader, MinhashDedupSignature(signatures, config)], workers),
        ([MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets),
        ([MinhashDedupCluster(buckets, removed, config=config)], 1),
        (
            [reader, MinhashDedupFilter(removed), JsonlWriter(f"{folder}/kept", compression=None)],
            workers,
        ),
    ]
    for number, (pipeline, tasks) in enumerate(steps):
        LocalPipelineExecutor(
            pipeline, tasks=tasks, workers=workers, logging_dir=f"{folder}/logs/{number}"
        ).run()
    files = Path(folder, "kept").glob("*.jsonl")
    stay = sum(file.read_bytes().count(b"\n") for file in files)
    print(json.dumps({"documents that stay": stay}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
