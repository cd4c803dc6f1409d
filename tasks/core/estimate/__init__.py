"""Estimates of a run: a sample of the sources is tokenized and written, and scaled."""
