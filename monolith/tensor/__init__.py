"""Nested structures, packing, ragged helpers and prefetch queues."""
