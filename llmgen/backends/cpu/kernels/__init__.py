"""Everything that runs as machine code.

The modules below fall into two groups.  Plain Python are ``arguments`` and ``layout``
(what Python and machine code agree on), ``quants`` itself (the table of types), ``cpu``,
``library``, ``store`` and ``compile`` (which level, compile, load), ``pool``, ``threads``
and ``cgroup`` (the team and what it may use).  All other modules are *kernel sources*:
they import numba, and they are imported only by the compiler process (``compile``), never
by a program that merely runs a model.
"""
