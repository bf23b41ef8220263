"""Generation of tokens."""
