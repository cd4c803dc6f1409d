"""One file for each feature of training: sources, columns, and answers about the data."""
