"""The sources of everything that runs as machine code.

``arguments``, ``layout`` and ``quants`` itself (the table of types) are what Python and
machine code agree on: plain Python that every process imports.  All other modules import
numba, and only the compiler process (``runtime.compile``) imports them.
"""
