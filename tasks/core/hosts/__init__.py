"""Runs on several hosts: the shared plan, and one attempt at a partition."""
