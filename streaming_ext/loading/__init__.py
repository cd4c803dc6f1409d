"""From settings to what a loop gets: datasets opened, steps planned, batches made and sent."""
