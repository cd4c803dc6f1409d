"""Where training stands, as a state that any number of ranks can go on from."""
