"""``llmgen chats``: conversations in files, which ``llmgen chat`` writes.

command.py  list, search, rename, export, remove
kept.py     the folder of conversations, and who has one open
store.py    one conversation in a file
"""
