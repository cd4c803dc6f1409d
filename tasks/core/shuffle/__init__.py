"""Shuffle and deduplication between tokenizing and writing: spills, merged by ranges of keys."""
