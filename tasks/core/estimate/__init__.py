"""What a run would take, told before it runs: a sample of the sources, timed, and arithmetic."""
