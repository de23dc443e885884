"""Keras 3 layers: `ml.keras.Embedding` over a collisionless table, `ml.keras.MLP` in one op."""

import keras  # type: ignore[import-untyped]

from monolith import errors

if keras.config.backend() != "tensorflow":
    raise errors.ConfigError(
        "monolith.keras is for Keras' TensorFlow backend, and this process uses "
        f"'{keras.config.backend()}'; set the environment variable KERAS_BACKEND=tensorflow before "
        "keras is imported."
    )

from monolith.keras.embedding import Embedding
from monolith.keras.mlp import MLP

__all__ = ["MLP", "Embedding"]
