"""A dataset without copies: the lists of what was left out."""
