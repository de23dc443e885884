"""A Keras 3 layer over a collisionless embedding table: `ml.keras.Embedding`."""

import keras  # type: ignore[import-untyped]

from monolith import errors

if keras.config.backend() != "tensorflow":
    raise errors.ConfigError(
        "monolith.keras is for Keras' TensorFlow backend, and this process uses "
        f"'{keras.config.backend()}'; set the environment variable KERAS_BACKEND=tensorflow before "
        "keras is imported."
    )

from monolith.keras.embedding import Embedding

__all__ = ["Embedding"]
