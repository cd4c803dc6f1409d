"""Training straight from text: which units there are, what was found in each, their tokens."""
