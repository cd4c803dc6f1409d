"""What passes between the hosts of a run, over the storage of the dataset."""
