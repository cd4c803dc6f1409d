"""JSON: an object a line, or one array of objects."""
