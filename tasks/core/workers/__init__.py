"""Worker processes: the jobs that they take, the pool that runs them, and what each job does."""
