"""``llmgen chat``: a conversation in a terminal or over pipes.

command.py        options, and which model and template
conversation.py   messages, answers; known.py: what the model has seen of them
joined.py         an answer in several parts; fullness.py: warnings before the context is full
repl.py           the loop: read a line, answer it or carry out a command
leaving.py        signals to leave; keyboard.py: keys while an answer is made
commands.py       slash commands
reading.py        lines from a terminal or a pipe
screen.py         how an answer appears; markdown.py, tables.py and thinking.py help it
clipboard.py      /copy
"""
