"""Steering a running job from outside: the barrier, the controller server and its client."""
