"""Documents in source files: one file a format, behind one protocol."""
