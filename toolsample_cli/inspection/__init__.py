"""Looking at shards: what a folder holds, one record in full, whether the contract is kept, what changed."""
