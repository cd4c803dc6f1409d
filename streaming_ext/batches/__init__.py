"""From mapped shards to batches of tensors, with masks and the ends of documents."""
