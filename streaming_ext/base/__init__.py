"""What every other folder may use. It imports nothing of this project."""
