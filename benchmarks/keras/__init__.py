"""Speed and quality of `model.fit` with `ml.keras.Embedding`, against the layers of others."""
