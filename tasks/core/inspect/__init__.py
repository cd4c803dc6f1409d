"""Looking into a dataset: what it is, and what stands in its samples."""
