"""The order of sequences, the partition among ranks, and the state of the loader: arithmetic."""
