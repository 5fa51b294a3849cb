"""What a model is: hyperparameters, weights, states and forward pass, independent of any backend.

Where to begin reading:

ops.py        the vocabulary in which a forward pass is written
decoder.py    what most architectures share; blocks.py: the usual forward passes
archs/        one class for each architecture, such as archs/llama.py
weights.py    tensors by name; keys.py: the metadata of an architecture, checked
states.py     what a sequence remembers between runs
rope.py       rotary positions; positions.py: positions of other kinds, sliding windows
mixtures.py   experts; latent.py: latent attention; hybrid.py: recurrent layers
runs.py       what the engine gives a backend to compute
"""
