"""Of which domain each token is: its source's folder, or the value of a column that was kept."""
