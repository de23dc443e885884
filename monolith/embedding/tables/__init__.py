"""Tables: one, many in one resource, their snapshots, and the registry of all tables of a graph."""
