"""Some documents of a published dataset as a dataset of their own, ids and origins kept."""
