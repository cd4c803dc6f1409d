"""What the Prefect tasks of a run share: its means, its worker pools, how it retries."""
