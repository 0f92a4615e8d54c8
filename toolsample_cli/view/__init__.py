"""A local web page over the shards as they are, also of a run that is still being written."""
