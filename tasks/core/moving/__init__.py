"""Published datasets and exports put elsewhere without a change: copied, and merged."""
