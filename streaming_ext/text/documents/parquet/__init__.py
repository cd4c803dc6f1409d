"""Parquet: rows, row groups, and the pages that checksums are of."""
