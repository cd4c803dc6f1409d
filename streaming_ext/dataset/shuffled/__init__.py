"""A shuffled dataset: the keys of its order, and the table of its sources."""
