"""What a round showed -> what to train on and what to ask next."""
