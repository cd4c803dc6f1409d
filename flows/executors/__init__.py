"""The executors, which make the parts of a run on this host or on others."""
