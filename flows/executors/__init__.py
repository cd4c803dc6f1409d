"""Where the parts of a run are worked on: on this host, or on others."""
