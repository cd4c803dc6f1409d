"""Copies of texts found over all parts: hashes sorted by part, compared by ranges, left out."""
