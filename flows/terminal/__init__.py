"""Output for people: progress, tables and pictures."""
