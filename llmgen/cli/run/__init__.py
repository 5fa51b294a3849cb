"""``llmgen run``: one prompt, its answers, and runs from an options file.

command.py   options, the prompt, one streamed answer
answers.py   several samples, or the beams of a search
manifest.py  named runs in an options file
"""
