"""From mapped shards to rows of tokens, with masks and the ends of documents."""
