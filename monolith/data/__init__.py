"""Example protos, parsing, synthetic data, streams."""
