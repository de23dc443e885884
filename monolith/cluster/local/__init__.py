"""A cluster of processes on this machine: starts them, shows what they say, sees that none is left.

Nothing here knows what the processes do, and nothing imports TensorFlow.
"""
