"""What a person reads in a terminal: progress lines and tables."""
