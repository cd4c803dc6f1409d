"""The generations of a dataset that was extended."""
