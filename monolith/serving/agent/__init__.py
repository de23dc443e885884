"""How servers of a model know each other through ZooKeeper, in the layout of the historical agent.

Replicas of parts are nodes below `/{bzid}/service/{name}` (`replicas`); models, layouts and
containers of the unified deployment are below `/{bzid}` (`backends`). Whoever has such a
ZooKeeper finds, and is found by, servers of both kinds.
"""
