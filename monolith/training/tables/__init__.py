"""Training over tables: what surrounds a model whose embeddings live in tables."""
