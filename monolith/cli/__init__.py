"""The `monolith` command: what an operator types.

`app` is the command itself; each subcommand is a module of its own.
"""
