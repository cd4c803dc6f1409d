"""From shards to batches: cache, maps, packing, masks."""
