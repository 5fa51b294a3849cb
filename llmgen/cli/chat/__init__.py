"""``llmgen chat``: a conversation in a terminal or over pipes.

command.py        options, and which model and template
conversation.py   messages, what the model has seen of them, answers
joined.py         an answer in several parts: their texts join; fullness.py: a context that fills up
repl.py           the loop: read, answer, obey
leaving.py        signals to leave; keyboard.py: keys while an answer is made
commands.py       what begins with a slash
reading.py        lines from a terminal or a pipe
screen.py         how an answer appears; markdown.py, tables.py and thinking.py help it
clipboard.py      /copy
"""
