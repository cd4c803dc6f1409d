"""Parts: which spans of which source files are worked on together."""
