"""Tests of reading datasets."""
