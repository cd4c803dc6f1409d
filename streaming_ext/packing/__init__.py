"""Rows of whole documents: which documents lie in which row, planned once from their lengths."""
