"""From the documents of a part to its shards."""
