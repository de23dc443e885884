"""Sends what training changes to the servers that serve it, within seconds.

Tables remember which rows change (`client_ops.py`: the ops, and the names that people know as
`distributed_serving_ops`). `pusher.py` has their rows sent every few seconds to all servers,
`dense.py` the variables, `channel.py` carries both, and `targets.py` knows where the servers are.
"""
