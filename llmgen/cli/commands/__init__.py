"""One file per command; each holds a function ``command`` whose signature is the command's options."""
