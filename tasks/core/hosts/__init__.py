"""Runs on several hosts: the shared plan, and the attempts at its partitions."""
