"""The executors, which work on the parts of a run: on this host, or on others."""
