"""Worker processes: the pool that runs them, their messages and their jobs."""
