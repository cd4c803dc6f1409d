"""A dataset on disk: layout, manifest, records, index; reading and writing shards."""
