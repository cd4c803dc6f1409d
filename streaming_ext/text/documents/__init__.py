"""What readers of source files share: documents in batches, columns, lines, objects, packing."""
