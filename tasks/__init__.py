"""Thin Prefect tasks: one file a step of the pipeline."""
