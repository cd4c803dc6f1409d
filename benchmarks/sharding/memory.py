"""The memory of a worker: over the size of a file, and over many files, by sampling."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import common
from benchmarks.make_corpus import make_corpus


def peak_mb(samples: list[tuple[float, int]]) -> float:
    """The largest sample, in MB."""
    return max(resident for _, resident in samples) / 1e6


def peaks_by_quarter(sharded: common.Sharded) -> list[float | None]:
    """The largest worker's peak in each quarter of a run, in MB; None where no sample fell in."""
    workers = sharded.measured.worker_memory()
    begin = min(moment for samples in workers for moment, _ in samples)
    end = max(moment for samples in workers for moment, _ in samples)
    peaks = []
    for quarter in range(4):
        after, until = (begin + (end - begin) * (quarter + k) / 4 for k in (0, 1))
        inside = [s for samples in workers for s in samples if after <= s[0] <= until]
        peaks.append(peak_mb(inside) if inside else None)
    return peaks


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, nargs="*", default=[50, 500, 2000])
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--mb-per-file", type=float, default=100)
    parser.add_argument("--mutate", type=float, default=0.005)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--scratch", type=Path, default=common.CACHE / "scratch")
    parser.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    args = parser.parse_args()
    tokenizer = args.tokenizer or common.default_tokenizer()
    output = args.scratch / "memory"
    peaks: dict[str, float] = {}
    quarters: dict[str, list[float | None]] = {}
    corpora = [(1, size, 1) for size in args.megabytes] + [(args.files, args.mb_per_file, 2)]
    for count, size, workers in corpora:
        folder = args.scratch / f"memory-{count}-{size:g}"
        files = make_corpus(folder, files=count, megabytes=size, share=args.mutate)
        sharded = common.shard(files, output, tokenizer, workers=workers, interval=0.02)
        name = f"{count} x {size:g} MB, {workers} workers"
        peaks[name] = max(map(peak_mb, sharded.measured.worker_memory()))
        quarters[name] = peaks_by_quarter(sharded)
    rows = (
        (name, f"{peak:.0f}", ", ".join(f"{value or 0:.0f}" for value in quarters[name]))
        for name, peak in peaks.items()
    )
    print(common.table(("text", "peak of a worker, MB", "by quarter of the run, MB"), rows))
    common.save(args.result, peak_mb=peaks, peak_mb_by_quarter=quarters)


if __name__ == "__main__":
    main()
