"""Runs inside the scorer's own environment: standard library and bfcl_eval only, no other module of ours."""
