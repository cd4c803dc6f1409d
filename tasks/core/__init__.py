"""The pipeline itself, without Prefect: it turns source files into parts of a dataset."""
