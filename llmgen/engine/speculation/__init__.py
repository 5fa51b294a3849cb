"""Speculative decoding: tokens are guessed, and one run of the model checks several of them.

Leviathan et al. 2023, arXiv:2211.17192; the guesses come from a smaller model (``draft``) or from
what the sequence said before (``lookup``).
"""
