"""datatrove: ParquetReader, or JsonlReader for lines, and DocumentTokenizer, one task a file."""

from __future__ import annotations

from contract import END, Clock, arguments
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader, ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer


def main() -> None:
    """Tokenize without its shuffle, which it does on by default and which costs more time."""
    args = arguments()
    folder = args.files[0].parent
    names = args.output / "names.txt"
    names.write_text("".join(f"{path.name}\n" for path in args.files))
    reader = JsonlReader if args.files[0].suffix == ".jsonl" else ParquetReader
    clock = Clock()
    LocalPipelineExecutor(
        pipeline=[
            reader(str(folder), paths_file=str(names)),
            DocumentTokenizer(
                str(args.output / "tokens"),
                tokenizer_name_or_path=str(args.tokenizer),
                eos_token=END,
                shuffle_documents=False,
            ),
        ],
        tasks=len(args.files),
        workers=args.workers,
        logging_dir=str(args.output / "logs"),
    ).run()
    clock.report(sum(path.stat().st_size // 2 for path in args.output.glob("tokens/*.ds")))


if __name__ == "__main__":
    main()
