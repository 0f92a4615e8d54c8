"""Tasks times an engine to rollouts."""
