"""Which sequence comes when, on which rank: shuffle, mixture and partition as index arithmetic."""
