"""One client for all object stores, and what their errors mean."""
