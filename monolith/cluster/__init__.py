"""Addresses, service discovery, membership, job control."""
