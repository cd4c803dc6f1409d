"""Estimates of a run before it runs: a sample of the sources is worked on and scaled."""
