"""Arithmetic: the order of sequences, their partition among ranks, the state of the loader."""
