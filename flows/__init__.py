"""Prefect flows, and the `shardmill` command line."""
