"""The pipeline itself, with no Prefect in it: how source files become parts of a dataset."""
