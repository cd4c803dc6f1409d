"""From shards to rows of tokens: cache, maps, threads that read ahead, sources."""
