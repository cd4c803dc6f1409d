"""The commands of `shardmill`, one a file."""
