"""The bytes of files that hold many things: tar files, Parquet files."""
