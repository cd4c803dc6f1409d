"""Sets of token ids in the formats of other trainers, as sources of documents."""
