"""Compiled kernels on the CPU: programs are recorded once and run by a team of threads."""
