"""What a completion earns, and why."""
