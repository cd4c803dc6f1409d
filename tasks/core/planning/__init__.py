"""What a run has to do: sources, parts, shares of nodes, and what the output holds already."""
