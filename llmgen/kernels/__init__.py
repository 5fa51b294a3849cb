"""Everything that runs as machine code.

The modules below fall into two groups.  ``cpu``, ``library`` and ``threads`` are
plain Python: they pick a kernel level for this CPU, compile or load kernels, and
keep the team of threads.  All other modules are *kernel sources*: they import
numba, and they are imported only by the compiler process (``compile``), never by
a program that merely runs a model.
"""
