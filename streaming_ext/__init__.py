"""The training side of Shardmill: the format of a dataset, its manifest, and what reads it."""
