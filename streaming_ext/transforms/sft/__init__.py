"""Fine-tuning: conversations as tokens, with labels of what the assistant says."""
