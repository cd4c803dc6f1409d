"""What everything else here may use: it imports nothing of this project."""
