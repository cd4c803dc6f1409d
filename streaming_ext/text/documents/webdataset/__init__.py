"""WebDataset: the members of a tar, and the samples that they are."""
