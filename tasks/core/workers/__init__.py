"""Worker processes: the pool that runs them, the messages between, and the jobs."""
