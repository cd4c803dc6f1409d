"""A published dataset written as another trainer reads it: plan, parts, publishing, verifying."""
