"""What the members of a job do when a launcher, or a scheduler, starts them.

`targets` finds what is to be trained by its name, `work` is that, ready to be handed to processes,
`member` is one process of a job, `single` one that a scheduler has started, and `cluster` trains
on processes of this machine, which `monolith.cluster.local` runs.
"""
