"""The format of a dataset: layout, manifest, records, index and shards."""
