"""Which sequence stands at which place: each stream's shuffle, and how streams share an epoch."""
