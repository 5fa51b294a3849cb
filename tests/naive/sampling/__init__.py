"""Sampling in plain numpy, step by step: what the compiled chain must choose, too."""
