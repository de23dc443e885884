"""The embedding table against its peers, on one seeded workload.

`make bench-table` runs everything: `run` starts one process per contender (`worker`), each in the
environment it needs (`environments`), asks them in turns for figures (`crew`), and prints the
tables and the bars (`report`, `bars`). `workload` makes the ids that all of them get.
"""
