"""Orders in which each node reads a share of the data that it keeps itself."""
