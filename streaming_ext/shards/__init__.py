"""Shards near the reader: fetched, cached, verified and mapped."""
