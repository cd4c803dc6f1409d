"""Outputs that are made from published datasets: exports, copies, merges, subsets and columns."""
