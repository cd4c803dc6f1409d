"""A shuffle between tokenizing and writing: sorted spills, merged by ranges of keys."""
