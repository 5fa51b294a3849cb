"""The conversation behind ``llmgen chat``.

conversation.py   messages, what the model has seen of them, answers
repl.py           the loop: read, answer, obey
interrupts.py     Ctrl-C while an answer is made; keyboard.py: other keys
commands.py       what begins with a slash
reading.py        lines from a terminal or a pipe
screen.py         how an answer appears; markdown.py, tables.py and thinking.py help it
store.py          conversations in files
clipboard.py      /copy
"""
