"""Curate data for RL tool learning, one Parquet stage at a time."""

__version__ = "0.1.0"
