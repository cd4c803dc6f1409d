"""The order of a pass during which the dataset was extended."""
