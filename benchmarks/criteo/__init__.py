"""A training step as a whole, shaped as one on the Criteo data, ours against other libraries."""
