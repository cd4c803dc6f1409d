"""Datasets made from sources: plan, phases and publishing, also for `extend` and `import`."""
