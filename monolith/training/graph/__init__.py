"""The plain estimator: trains a model that a function builds as a graph."""
