"""What a file costs beside its bytes: many small files against as many bytes in few large ones."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from benchmarks import common
from benchmarks.make_corpus import make_corpus


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2400)
    parser.add_argument("--mb-per-file", type=float, default=1)
    parser.add_argument("--large-files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--scratch", type=Path, default=common.CACHE / "scratch")
    parser.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    args = parser.parse_args()
    tokenizer = args.tokenizer or common.default_tokenizer()
    total = args.files * args.mb_per_file
    corpora = {
        count: make_corpus(args.scratch / f"many-{count}", files=count, megabytes=total / count)
        for count in (args.files, args.large_files)
    }

    def seconds_for(count: int) -> float:
        # A folder, not 2,400 arguments.
        folder = [corpora[count][0].parent]
        output = args.scratch / "many-output"
        return common.shard(folder, output, tokenizer, workers=args.workers).seconds

    names = {f"{count} files": count for count in corpora}
    values = common.rounds(
        {name: lambda count=count: seconds_for(count) for name, count in names.items()}, args.rounds
    )
    medians = {names[name]: statistics.median(seconds) for name, seconds in values.items()}
    sizes = {count: common.text_bytes(files) for count, files in corpora.items()}
    cost = medians[args.large_files] * sizes[args.files] / sizes[args.large_files]
    extra = (medians[args.files] - cost) / args.files
    rows = [(count, f"{sizes[count] / 1e6:.0f}", f"{medians[count]:.1f}") for count in medians]
    print(common.table(("files", "MB of text", "seconds"), rows))
    print(f"\nA file costs {extra:.3f} s on top of its bytes.")
    common.save(args.result, seconds=values, text_bytes=sizes, seconds_a_file=extra)


if __name__ == "__main__":
    main()
