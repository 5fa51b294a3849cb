"""From logits to a token: the settings, the chain of samplers, randomness."""
