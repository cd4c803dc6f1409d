"""What users hand over: kinds of arguments, and words of stock StreamingDataset."""
