"""What several commands share.

options.py, config.py    options on the command line and in files
help.py, volume.py       --help, --verbose and --quiet
arguments.py             typed text as UTF-8, whatever the locale
models.py, loading.py    from MODEL to a loaded model
templates.py             --template
texts.py                 text from files and pipes
exits.py, endings.py     exit codes, and what is said at the end
stats.py                 --stats
streams.py               stdout and stderr, and what happens where they cannot be written
interrupts.py            Ctrl-C
summary.py, machine.py   facts about a model file, and about this computer
"""
