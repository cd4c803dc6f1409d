"""Which sequence comes when, and the state of the loader: pure arithmetic."""
