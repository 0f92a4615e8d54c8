"""The stages: each reads shards, calls one pure function and writes shards; `run(...) -> Account`."""
