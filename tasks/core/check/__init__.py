"""Checks and descriptions of published datasets and exports: `verify`, `inspect` and others."""
