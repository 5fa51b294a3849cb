"""How compiled code is found, loaded and run: the CPU's level, the object store, threads, interrupts."""
