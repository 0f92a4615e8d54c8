"""BFCL: the official questions and checkers for any checkpoint or endpoint, in v3 and v4, safely and offline.

categories, aggregate (pure) · entries, ask (questions to prompts) · environment, scorer, inside/ (the official checkers
in a process and a venv of their own) · answering, dialogue (model answers) · trees, tables (what is written).
"""
