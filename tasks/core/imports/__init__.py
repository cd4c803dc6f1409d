"""What other trainers read, taken over into datasets: `shard` whose sources hold ids, not texts."""
