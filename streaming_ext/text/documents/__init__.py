"""What readers of source files have in common: bytes, streams, rows, batches of documents."""
