"""A host's side of a run on several: means for as long as the parent run lives."""
