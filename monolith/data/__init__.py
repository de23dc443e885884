"""Example protos, files and streams as batches of ragged ids, string ids, synthetic data."""
