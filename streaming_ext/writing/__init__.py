"""Writing of datasets: from the documents of a part to its shards."""
