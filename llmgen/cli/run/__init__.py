"""``llmgen run``: one prompt, its answers, and runs from an options file.

command.py   options, the prompt
one.py       one answer, streamed
answers.py   several samples, or the beams of a search
manifest.py  named runs in an options file
"""
