"""TensorBoard data for architecture search and feature insight."""
