"""The prediction server against a call of the model in the same process."""
