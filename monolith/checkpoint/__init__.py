"""Savers, saver hooks, recovery."""
