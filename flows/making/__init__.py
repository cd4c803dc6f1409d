"""Flows that make an output of published ones: by part, resumable, the manifest last."""
