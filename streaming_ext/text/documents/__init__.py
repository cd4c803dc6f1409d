"""Code that the readers of source files share: bytes, streams, rows, batches of documents."""
