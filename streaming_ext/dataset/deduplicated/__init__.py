"""A dataset without copies: the lists of what was left out, and hashes of what stayed."""
