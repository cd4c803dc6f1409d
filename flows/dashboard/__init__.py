"""The artifacts of a run in Prefect's dashboard: progress, tables and the report."""
