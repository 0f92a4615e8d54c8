"""Models as all stages meet them: chat template and tokens, loading, digests."""
