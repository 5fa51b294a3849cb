"""Speculative decoding: tokens are guessed, and one run of the model checks several of them.

Leviathan et al. 2023, arXiv:2211.17192; the guesses come from a smaller model (``draft``) or from
what the sequence said before (``lookup``).

speculator.py  who guesses for a sequence, and how well it goes
lookup.py      guesses from the text itself; draft.py: from a smaller model
pace.py        how many guesses pay, by what runs cost (costs.py), what was right before
               (experience.py), and what guessing may still lose (account.py)
memory.py      what is kept of that from one program to the next
"""
