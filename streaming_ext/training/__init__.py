"""What training uses: datasets, loader, streams, trace."""
