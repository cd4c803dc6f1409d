"""Files as a source of a chain: pieces, records, and several files in turns."""
