"""Collisionless embedding tables: configs, tables, filters, features, sharded lookup."""
