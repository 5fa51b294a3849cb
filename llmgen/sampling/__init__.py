"""From logits to a token: the settings, the chain of samplers, randomness.

sampler.py    one step, in its fixed order
params.py     the options; checks.py: what values they take
stages.py     the options as arguments of the compiled step; bias.py, breakers.py: parts of them
rejection.py  the choice among guessed tokens
rng.py        random numbers from the seed and the number of the token
"""
