"""Training speed of the demo's model, ours against the same model in other libraries."""
