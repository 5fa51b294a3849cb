"""How text reaches a terminal or a pipe.

output.py      notes, tables, JSON, numbers for people
progress.py    the line that tells how far the work is
wrapping.py    where a line breaks, and how wide text is
growing.py     a line that grows on the screen; plain.py: text of such lines
streaming.py   the text of a generation as it comes
"""
