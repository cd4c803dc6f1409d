"""Errors, types and checks for all other folders; this folder imports none of them."""
