"""Saving and restoring a table: against the disk, against a peer, and beside lookups.

`make bench-checkpoint` runs everything: `run` starts a process for each contender (`worker`), in
the environment it needs, asks them in turns for figures, and prints the bars (`report`). `rows` is
what all of them save, `disk` the plain file of the same size and how files are treated alike.
"""
