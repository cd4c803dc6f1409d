"""The pages of a run in Prefect's dashboard: tables, charts and the report."""
