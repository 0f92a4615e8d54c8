"""Whole experiments: recipe, rounds of all stages, report."""
