"""Output for people in a terminal: progress lines and tables."""
