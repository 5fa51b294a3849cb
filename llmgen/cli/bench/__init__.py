"""``llmgen bench``: tokens per second.

command.py  options, and the order of the work
measure.py  the measurements; guessing.py: what guessing tokens gains
report.py   results as a table, CSV, JSON, SQL
plot.py     results as a picture
"""
