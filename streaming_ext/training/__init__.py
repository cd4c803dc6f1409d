"""What a user trains with, on top of the loader: text as a dataset."""
