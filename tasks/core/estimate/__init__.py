"""What a run would make and take, before it runs: a sample of the sources, worked on and scaled."""
