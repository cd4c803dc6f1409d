"""Outputs that are made of published datasets: exports, copies, merges, subsets."""
