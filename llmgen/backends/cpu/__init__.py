"""Compiled kernels on the CPU: programs are recorded once and run by a team of threads.

Where to begin reading:

model.py      a model that is ready to run; ``Model.forward`` is the one call that runs tokens
recording.py  its forward pass, recorded for each role
recorder.py   the vocabulary as steps; decode_recorder.py: for generated tokens, prefill_recorder.py: for prompts
plan.py       where barriers are needed, and which memory each value has
program.py    the tables that threads run; the control block that says what a run computes
states.py     where a sequence's states lie; sequence.py: what can be done with them
runtime/      from a kernel's name to machine code, and the threads that run it
kernels/      the sources of the machine code
"""
