"""Which groups are worth training on and how much each task is wanted again: one pure rule per method."""
