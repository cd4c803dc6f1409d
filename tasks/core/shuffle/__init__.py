"""A shuffle between tokenizing and writing: sorted runs of documents, merged by ranges of keys."""
