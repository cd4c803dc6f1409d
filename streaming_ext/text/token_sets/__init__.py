"""Sets of token ids, as other trainers read them, as sources of documents."""
