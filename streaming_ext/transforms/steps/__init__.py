"""Steps of a chain, an idea a file: flows, and how a dataset opens each."""
