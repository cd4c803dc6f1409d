"""Thin Prefect tasks: the steps of a part, and the task after all parts."""
