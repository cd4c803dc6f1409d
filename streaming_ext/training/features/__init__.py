"""Features of training, one per file: sources, columns, and answers about the data."""
