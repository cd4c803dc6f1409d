"""What the dashboard of Prefect shows of a run: tables, charts and the report."""
