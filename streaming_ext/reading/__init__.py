"""From shards to rows of tokens: the cache, open shards, prefetching threads and sources."""
