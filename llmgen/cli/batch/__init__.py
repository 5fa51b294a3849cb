"""``llmgen batch``: many prompts, one JSON line each.

command.py  options, and one pass over the input
input.py    lines of the input -> requests
output.py   where answers go: a stream or a file
journal.py  answers so far, so that an interrupted batch can go on
"""
