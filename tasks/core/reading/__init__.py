"""Reading of a dataset that may be damaged: records, shards and the tokenizer are checked."""
